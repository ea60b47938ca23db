//! What can go wrong with a database, by what the caller can do about it.

/// A boxed cause.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a method of a store failed. "Not found" and lost races are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, or went away before the commit was sent: nothing happened. Try again later.
    #[error("the database cannot be reached")]
    Unavailable(#[source] Cause),
    /// The connection was lost while the commit was on its way: it happened or it did not. Reading tells
    /// (docs/protocol.md S6), and so does the same call again where the method says so.
    #[error("the connection was lost during commit; whether it happened is unknown")]
    OutcomeUnknown(#[source] Cause),
    /// A lock or statement limit ran out, or serialization failures went on after every repetition.
    #[error("the database is too busy")]
    Busy(#[source] Cause),
    /// The disk is full, or a quota was reached.
    #[error("the database has no space left")]
    Full(#[source] Cause),
    /// The database answers read-only or is in recovery. The connection was thrown away.
    #[error("the database is read-only")]
    ReadOnly(#[source] Cause),
    /// The database refuses the login, the name of the database, or what the role may do.
    #[error("the database refuses access: {0}")]
    Denied(String),
    /// The data given broke a constraint or a limit of the database. Splitting a batch finds the item (A4).
    #[error("the database refuses the data")]
    Rejected(#[source] Cause),
    /// A row cannot be read as what it should be.
    #[error("{table}.{column} of {id} holds something unreadable")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row.
        id: String,
    },
    /// The schema does not fit this binary. The text says what to do.
    #[error("{0}")]
    Schema(String),
    /// A sealed value cannot be opened: wrong master key, or changed by someone.
    #[error("a sealed value of {table} cannot be opened: wrong master key?")]
    Sealed {
        /// The table.
        table: &'static str,
    },
    /// Anything else; a bug, or something new in the database.
    #[error("the database failed")]
    Other(#[source] Cause),
}

impl StoreError {
    /// Whether the same call may well succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::OutcomeUnknown(_)
                | Self::Busy(_)
                | Self::Full(_)
                | Self::ReadOnly(_)
        )
    }
}

/// What methods of a store return.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
