//! The contract between the walk and a database.
//!
//! [`Store`] is a set of traits whose methods are domain verbs; **one method is one transaction** (the
//! migration and the sweeps that work in chunks say so). `pombo-store-postgres` and `pombo-store-sqlite`
//! implement it, and one conformance suite (feature `conformance`) runs against both. The rules that the
//! methods keep are numbered in `docs/protocol.md`; comments name them.
//!
//! This crate holds no SQL and opens no connection. Rows never leave a store: everything here is a domain
//! type or a plain record of this crate.

pub mod accept;
pub mod admin;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod endpoints;
pub mod error;
pub mod flush;
pub mod keyring;
pub mod outbox;
pub mod page;
pub mod parking;
pub mod people;
pub mod reading;
pub mod sessions;

pub use error::StoreError;
pub use page::{Page, PageRequest};

/// A database, whichever it is. Held as `Arc<dyn Store>`.
///
/// Cancel safety: dropping the future of any method leaves either the whole transaction or nothing of it
/// behind, but the caller does not learn which; treat it like [`StoreError::OutcomeUnknown`].
pub trait Store:
    admin::Admin
    + sessions::Sessions
    + accept::Accept
    + outbox::Outbox
    + claim::Claim
    + flush::Flush
    + parking::Parking
    + endpoints::Endpoints
    + reading::Reading
    + people::People
    + Send
    + Sync
    + 'static
{
}
