//! A throw-away PostgreSQL server: made, started, handed to a command, stopped and removed.

use std::env;
use std::fs::{self, DirBuilder};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::child::{Children, quiet};
use crate::leftovers::{self, Record};
use crate::postgres::Programs;
use crate::say::say;

/// How the directories of clusters begin.
pub(crate) const PREFIX: &str = "pombo-postgres-";
/// The data directory inside a cluster's directory.
pub(crate) const DATA: &str = "data";

/// Settings that differ from PostgreSQL's own.
///
/// Tests kill servers and ask afterwards what is still there, so `fsync` is on whatever the packager chose.
/// Every test has its own database and pools, and many run at once: hence the connections.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "full_page_writes=on",
    "max_connections=300",
    "shared_buffers=256MB",
    "log_min_messages=warning",
];

/// Tries to find a port that is still free when the server binds it.
const PORT_TRIES: usize = 5;

/// A running server; stopped and removed when dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    programs: Programs,
    owner: Option<Owner>,
    directory: PathBuf,
    port: u16,
    // Dropped last: the cluster is recorded until nothing of it is left.
    _record: Record,
}

/// The user that runs the server when we are root, whom PostgreSQL refuses.
#[derive(Debug, Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl Cluster {
    /// Finds (or installs) PostgreSQL, removes what killed runs left, and starts a server.
    pub(crate) fn start(children: &mut Children) -> Result<Self> {
        leftovers::remove_all()?;
        let programs = Programs::find_or_install(children)?;
        let owner = if rustix::process::geteuid().is_root() { Some(Owner::unprivileged()?) } else { None };
        let directory = new_directory()?;
        let record = Record::write(&directory)?;
        let mut cluster = Self { programs, owner, directory, port: 0, _record: record };
        cluster.make()?;
        children.refuse_when_interrupted()?;
        cluster.serve()?;
        let (major, bin) = (cluster.programs.major, cluster.programs.bin.display());
        say(&format!("PostgreSQL {major} ({bin}) serves {}", cluster.url()));
        Ok(cluster)
    }

    /// Tells a command where the server is.
    pub(crate) fn export(&self, command: &mut Command) {
        command.env("POMBO_TEST_POSTGRES", self.url());
        command.env("POMBO_TEST_PG_BIN", &self.programs.bin);
        // Tells the tests that they need not drop their databases one by one, which takes most of a second each.
        command.env("POMBO_TEST_POSTGRES_THROWAWAY", "1");
    }

    /// Points psql and other clients at the server, for commands that a person types.
    pub(crate) fn export_to_clients(&self, command: &mut Command) {
        command.env("PGHOST", &self.directory).env("PGPORT", self.port.to_string());
        command.env("PGUSER", "pombo").env("PGDATABASE", "postgres");
    }

    fn url(&self) -> String {
        format!("postgres://pombo@127.0.0.1:{}/postgres", self.port)
    }

    fn make(&self) -> Result<()> {
        DirBuilder::new()
            .mode(0o700)
            .create(&self.directory)
            .with_context(|| format!("cannot make {}", self.directory.display()))?;
        if let Some(owner) = self.owner {
            chown(&self.directory, Some(owner.uid), Some(owner.gid))?;
        }
        let mut initdb = self.program("initdb");
        initdb.args([
            "--username=pombo",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--pgdata",
        ]);
        quiet(initdb.arg(self.directory.join(DATA)))?;
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        for _ in 0..PORT_TRIES {
            self.port = free_port()?;
            let log = self.directory.join("log");
            let mut pg_ctl = self.program("pg_ctl");
            pg_ctl
                .args(["start", "--wait", "--timeout=60", "--silent", "--pgdata"])
                .arg(self.directory.join(DATA));
            let Err(error) = quiet(pg_ctl.arg("--log").arg(&log).arg("--options").arg(self.options())) else {
                return Ok(());
            };
            let log = fs::read_to_string(&log).unwrap_or_default();
            if !log.contains("could not bind") {
                return Err(error.context(format!("PostgreSQL does not start; its log says:\n{log}")));
            }
        }
        bail!("found no free port on 127.0.0.1 in {PORT_TRIES} tries")
    }

    /// The server's arguments, as `pg_ctl` hands them to a shell.
    fn options(&self) -> String {
        let mut options = format!("-p {} -h 127.0.0.1 -k '{}'", self.port, self.directory.display());
        for setting in SETTINGS {
            options.push_str(" -c ");
            options.push_str(setting);
        }
        options
    }

    /// One of the server's programs, run as the owner of its files.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.bin.join(name));
        // The owner may not enter the directory we were started in, and `initdb` wants a time zone it can name.
        command.current_dir(&self.directory).env("TZ", "UTC");
        for (name, _) in env::vars_os() {
            // PGPORT, PGOPTIONS and the like of the developer's shell are about other servers.
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if let Some(owner) = self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.directory.join(DATA);
        if data.join("postmaster.pid").exists() {
            let mut pg_ctl = self.program("pg_ctl");
            // Immediate: nothing of it will be read again.
            pg_ctl.args(["stop", "--wait", "--timeout=60", "--silent", "--mode=immediate", "--pgdata"]);
            if let Err(error) = quiet(pg_ctl.arg(&data)) {
                say(&format!("{error:#}"));
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            say(&format!("cannot remove {}: {error}", self.directory.display()));
        }
    }
}

impl Owner {
    /// The user of the distribution's PostgreSQL, or the one that owns nothing.
    fn unprivileged() -> Result<Self> {
        ["postgres", "nobody"].iter().find_map(|name| Self::named(name).ok()).context(
            "PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as",
        )
    }

    fn named(name: &str) -> Result<Self> {
        let number =
            |flag: &str| -> Result<u32> { Ok(quiet(Command::new("id").args([flag, name]))?.parse()?) };
        Ok(Self { uid: number("-u")?, gid: number("-g")? })
    }
}

/// A new name outside the checkout: that may lie under a home the server's user cannot enter, and the path of a
/// unix socket has about 100 bytes. `/var/tmp` is on a disk where `/tmp` may be memory, and `fsync` counts here.
fn new_directory() -> Result<PathBuf> {
    let parent = Path::new("/var/tmp");
    let parent = if parent.is_dir() { parent.to_path_buf() } else { env::temp_dir() };
    let nanoseconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.subsec_nanos();
    Ok(parent.join(format!("{PREFIX}{}-{nanoseconds:09}", std::process::id())))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}
