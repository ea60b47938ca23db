//! From what sqlx says to what the caller can do. By SQLSTATE, never by text.

use std::time::Duration;

use pombo_store::StoreError;
use sqlx::Error;
use sqlx::postgres::PgDatabaseError;

/// What a statement that failed was part of: it decides what a lost connection means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was committed by what was sent so far.
    Before,
    /// The statement commits itself, or was the COMMIT.
    Commit,
}

/// Why one run of a statement or transaction did not succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The database or the connection.
    Sql(Error),
    /// A row that cannot be read, or an outcome that ends the transaction.
    Store(StoreError),
    /// No answer within the limit of this side; the connection is not to be used again.
    Silent(Duration),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What to do about a fault.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// A serialization failure or deadlock: nothing happened, the same again may succeed.
    Again(StoreError),
    /// A row of history fell into a day that has no partition yet: nothing happened.
    NoPartition(StoreError),
    /// Tell the caller; `discard` throws the connection away.
    Fail {
        /// What the caller learns.
        error: StoreError,
        /// Whether the connection must not be used again.
        discard: bool,
    },
}

/// No answer came in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the database within {0:?}")]
struct NoAnswer(Duration);

pub(crate) fn judge(fault: Fault, phase: Phase) -> Verdict {
    match fault {
        Fault::Store(error) => Verdict::Fail { error, discard: false },
        Fault::Silent(limit) => Verdict::Fail { error: lost(NoAnswer(limit).into(), phase), discard: true },
        Fault::Sql(error) => judge_sql(error, phase),
    }
}

fn judge_sql(error: Error, phase: Phase) -> Verdict {
    let Error::Database(database) = &error else {
        return judge_driver(error, phase);
    };
    let code = database.code().unwrap_or_default().into_owned();
    // A row without partition is a check violation without constraint, on the partitioned table.
    if code == "23514" && database.constraint().is_none() && database.table().is_some() {
        return Verdict::NoPartition(StoreError::Rejected(error.into()));
    }
    let fatal = database.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| {
        matches!(error.severity(), sqlx::postgres::PgSeverity::Fatal | sqlx::postgres::PgSeverity::Panic)
    });
    let keep = |error| Verdict::Fail { error, discard: fatal };
    match (&code[..2.min(code.len())], code.as_str()) {
        (_, "40001" | "40P01") => Verdict::Again(StoreError::Busy(error.into())),
        // The server goes or throws us out. During a commit it may have gone through before that.
        ("08", _) | (_, "57P01" | "57P02" | "57P05" | "25P03" | "25P04" | "40003") => {
            Verdict::Fail { error: lost(error.into(), phase), discard: true }
        }
        (_, "57P03") => Verdict::Fail { error: StoreError::Unavailable(error.into()), discard: true },
        // 55000: "recovery is in progress", a standby answers (T10).
        (_, "25006" | "55000") => Verdict::Fail { error: StoreError::ReadOnly(error.into()), discard: true },
        (_, "57014" | "55P03" | "53200" | "53300" | "53400") => keep(StoreError::Busy(error.into())),
        (_, "53100") => keep(StoreError::Full(error.into())),
        ("28", _) | (_, "3D000" | "42501") => keep(StoreError::Denied(database.message().to_owned())),
        ("22" | "23" | "54", _) => keep(StoreError::Rejected(error.into())),
        // A schema or table that is not there: nobody has migrated.
        (_, "3F000" | "42P01" | "42703" | "42883") => keep(StoreError::Schema(format!(
            "the database does not have Pombo's tables as this version knows them ({}): run `pombo migrate`",
            database.message()
        ))),
        _ => keep(StoreError::Other(error.into())),
    }
}

fn judge_driver(error: Error, phase: Phase) -> Verdict {
    let error = match error {
        Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => lost(error.into(), phase),
        Error::Tls(_) | Error::PoolTimedOut | Error::PoolClosed | Error::BeginFailed => {
            StoreError::Unavailable(error.into())
        }
        _ => return Verdict::Fail { error: StoreError::Other(error.into()), discard: false },
    };
    Verdict::Fail { error, discard: true }
}

fn lost(cause: pombo_store::error::Cause, phase: Phase) -> StoreError {
    match phase {
        Phase::Before => StoreError::Unavailable(cause),
        Phase::Commit => StoreError::OutcomeUnknown(cause),
    }
}

/// The error of a fault that is not to be repeated.
pub(crate) fn final_error(fault: Fault, phase: Phase) -> StoreError {
    match judge(fault, phase) {
        Verdict::Again(error) | Verdict::NoPartition(error) | Verdict::Fail { error, .. } => error,
    }
}
