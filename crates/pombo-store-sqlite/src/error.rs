//! SQLite's result codes by what the caller can do about them. Texts are never matched.

use rusqlite::ErrorCode;

use pombo_store::StoreError;

/// What work inside a transaction fails with: `?` takes both our errors and SQLite's.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) StoreError);

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self(store_error(error))
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.0
    }
}

/// Maps an error of a statement: nothing of the transaction has happened.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    let Some(code) = error.sqlite_error_code() else {
        return StoreError::Other(Box::new(error));
    };
    match code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::OperationInterrupted
        | ErrorCode::OperationAborted
        | ErrorCode::SchemaChanged
        | ErrorCode::FileLockingProtocolFailed => StoreError::Busy(Box::new(error)),
        ErrorCode::DiskFull => StoreError::Full(Box::new(error)),
        ErrorCode::ReadOnly => StoreError::ReadOnly(Box::new(error)),
        ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory => {
            StoreError::Unavailable(Box::new(error))
        }
        ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
            StoreError::Denied(error.to_string())
        }
        ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch => {
            StoreError::Rejected(Box::new(error))
        }
        _ => StoreError::Other(Box::new(error)),
    }
}

/// Maps an error of COMMIT. A disk that fails in it may have kept the commit record or not.
pub(crate) fn commit_error(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::OutcomeUnknown(Box::new(error)),
        _ => store_error(error),
    }
}

/// The same error once more, for everyone whose work went down with it.
pub(crate) fn repeat(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, text) => rusqlite::Error::SqliteFailure(*code, text.clone()),
        other => rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ERROR),
            Some(other.to_string()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn codes_are_mapped_by_what_the_caller_can_do() {
        assert!(matches!(store_error(failure(ffi::SQLITE_BUSY)), StoreError::Busy(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_INTERRUPT)), StoreError::Busy(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_FULL)), StoreError::Full(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_READONLY_DBMOVED)), StoreError::ReadOnly(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_CONSTRAINT_UNIQUE)), StoreError::Rejected(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_IOERR_READ)), StoreError::Unavailable(_)));
        assert!(matches!(commit_error(failure(ffi::SQLITE_IOERR_FSYNC)), StoreError::OutcomeUnknown(_)));
        assert!(matches!(commit_error(failure(ffi::SQLITE_FULL)), StoreError::Full(_)));
        assert!(matches!(store_error(failure(ffi::SQLITE_CORRUPT)), StoreError::Other(_)));
    }
}
