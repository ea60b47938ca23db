//! Clusters that a killed run left behind.
//!
//! Each run writes a record beside the build: a file that names the cluster's directory and that stays locked as
//! long as the run lives. The system frees the lock when the process ends, however it ends, so a record that can
//! be locked belongs to nobody any more. Runs at the same time do not touch each other.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::child::quiet;
use crate::say::say;
use crate::workspace;

/// The record of one running cluster; removed when dropped.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    // Held for its lock.
    _file: File,
}

impl Record {
    /// Records that this run owns the cluster in `directory`, before that is made.
    pub(crate) fn write(directory: &Path) -> Result<Self> {
        let name = directory.file_name().context("the cluster's directory has no name")?;
        let path = records().join(name);
        fs::create_dir_all(records())?;
        let mut file = File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        file.try_lock().with_context(|| format!("cannot lock {}", path.display()))?;
        file.write_all(directory.as_os_str().as_bytes())?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Stops and removes every cluster whose run is gone.
pub(crate) fn remove_all() -> Result<()> {
    let Ok(entries) = fs::read_dir(records()) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let Ok(file) = File::open(&path) else { continue };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let directory = PathBuf::from(std::ffi::OsString::from_vec(fs::read(&path)?));
        // A run killed between making the record and writing it has made no directory yet. The name is checked
        // because what follows removes a directory by what a file says.
        let is_cluster = directory
            .file_name()
            .is_some_and(|name| name.as_bytes().starts_with(crate::cluster::PREFIX.as_bytes()));
        if directory.is_absolute() && is_cluster && directory.exists() {
            say(&format!("removing {}, left behind by an earlier run", directory.display()));
            stop(&directory);
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

/// Stops the server whose files lie in `directory`, if it runs.
fn stop(directory: &Path) {
    let data = directory.join(crate::cluster::DATA);
    let Some(pid) = server(&data) else { return };
    // SIGQUIT is PostgreSQL's immediate shutdown: its files are about to be removed.
    let _ = kill_process(pid, Signal::QUIT);
    for _ in 0..250 {
        if server(&data).is_none() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = kill_process(pid, Signal::KILL);
}

/// The server process of that data directory. The number in `postmaster.pid` may by now be another process's,
/// so its command line must name the directory.
fn server(data: &Path) -> Option<Pid> {
    let number = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let number: i32 = number.lines().next()?.trim().parse().ok()?;
    let arguments = match fs::read(format!("/proc/{number}/cmdline")) {
        Ok(arguments) => String::from_utf8_lossy(&arguments).into_owned(),
        Err(_) => quiet(Command::new("ps").args(["-o", "args=", "-p", &number.to_string()])).ok()?,
    };
    arguments.contains(data.to_str()?).then(|| Pid::from_raw(number)).flatten()
}

fn records() -> PathBuf {
    workspace::scratch().join("clusters")
}
