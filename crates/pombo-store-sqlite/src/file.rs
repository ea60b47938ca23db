//! The file: where it may lie, who has it, and how connections to it are set up (Q1).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{FlockOperation, flock};

use pombo_store::StoreError;
use pombo_store::error::Result;

use crate::SqliteConfig;
use crate::error::store_error;

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The lock that proves this process to be the only one. It lies on a file of its own: a lock on the
/// database itself would be in the way of SQLite's, and closing any handle of it would drop them (POSIX).
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes `<path>.lock`. The kernel drops it when the process ends, however it ends. The file stays: a
    /// process that removed it could remove the one that the next process has just locked.
    pub(crate) fn take(database: &Path) -> Result<Self> {
        let path = lock_path(database);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| cannot("write", &path, error))?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(StoreError::Denied(format!("{} cannot be locked: {error}", path.display())));
            }
            return Err(StoreError::Denied(held_by_another(database, &mut file)));
        }
        write_pid(&mut file).map_err(|error| cannot("write", &path, error))?;
        Ok(Self { _file: file })
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn held_by_another(database: &Path, lock: &mut File) -> String {
    let mut text = String::new();
    // Whoever holds the lock may be writing its number this very moment.
    let pid = lock.take(32).read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    format!(
        "{} is in use by {who}; one SQLite file serves one process (stop the other, or use PostgreSQL)",
        database.display()
    )
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn cannot(what: &str, path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::ReadOnly(format!("no permission to {what} {}: {error}", path.display()).into())
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(Box::new(error)),
        _ => StoreError::Denied(format!("{}: {error}", path.display())),
    }
}

/// Refuses places where a database cannot live.
pub(crate) fn check_place(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.is_dir() {
        return Err(StoreError::Denied(format!("the directory {} does not exist", directory.display())));
    }
    if path.is_dir() {
        return Err(StoreError::Denied(format!("{} is a directory", path.display())));
    }
    match network_file_system(directory) {
        Some(name) => Err(StoreError::Denied(format!(
            "{} lies on a network file system ({name}), where locks do not protect a SQLite file; use a local \
             disk, or PostgreSQL",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Kinds of network file systems by their magic number (statfs(2)).
#[cfg(target_os = "linux")]
const NETWORK_FILE_SYSTEMS: [(u32, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
];

#[cfg(target_os = "linux")]
fn network_file_system(directory: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type as u32;
    NETWORK_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_directory: &Path) -> Option<&'static str> {
    None
}

/// Makes the file where it is missing, for its owner alone; SQLite gives its companions the same mode.
pub(crate) fn create(path: &Path) -> Result<()> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(|error| cannot("write", path, error))
}

/// Opens a connection and sets it up. Nothing relies on how SQLite was built.
pub(crate) fn connect(config: &SqliteConfig, access: Access) -> Result<Connection> {
    let path = &config.path;
    let mode = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    if access == Access::Read && !path.exists() {
        return Err(StoreError::Denied(format!("{} does not exist", path.display())));
    }
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|error| refused(path, error))?;
    set_up(&connection, config).map_err(|error| refused(path, error))?;
    Ok(connection)
}

fn set_up(connection: &Connection, config: &SqliteConfig) -> rusqlite::Result<()> {
    connection.busy_timeout(config.busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -16_384)?; // KiB
    connection.pragma_update(None, "cell_size_check", true)?;
    // The first read of the file: where it is no database, this says so.
    connection.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(()))
}

/// WAL, so that readers and the one writer do not wait for each other; FULL, so that a commit is on the
/// disk when it is answered: every commit that precedes a POST must be (Q1).
pub(crate) fn set_up_writing(connection: &Connection, config: &SqliteConfig) -> Result<()> {
    let path = &config.path;
    let set = || -> rusqlite::Result<String> {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // 4 MiB: checkpoints are small and frequent; ten times that was no faster and gave a worse p99.
        connection.pragma_update(None, "wal_autocheckpoint", 1000)?;
        connection.pragma_update(None, "journal_size_limit", crate::writer::WAL_BYTES_MAX as i64)?;
        if let Some(pages) = config.pages_max {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(()))?;
        }
        Ok(mode)
    };
    let mode = set().map_err(|error| refused(path, error))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(StoreError::Denied(format!(
        "{} cannot use a write-ahead log (journal mode stays {mode}); the file system lacks shared memory",
        path.display()
    )))
}

fn refused(path: &Path, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            StoreError::Denied(format!("{} is not a SQLite database", path.display()))
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::Denied(format!("{} cannot be opened: {error}", path.display()))
        }
        _ => store_error(error),
    }
}
