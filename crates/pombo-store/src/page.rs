//! Pages of lists.

use uuid::Uuid;

use pombo_domain::clock::Timestamp;

/// Where a page begins: behind this item. Opaque to callers of the API, who get it as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The sort time of the last item seen; lists that sort by id alone ignore it.
    pub at: Timestamp,
    /// The id of the last item seen.
    pub id: Uuid,
}

/// Which page is wanted. Newest first.
#[derive(Debug, Clone, Copy)]
pub struct PageRequest {
    /// Most items, 1–250.
    pub limit: u16,
    /// Only items behind this one.
    pub after: Option<Cursor>,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}
