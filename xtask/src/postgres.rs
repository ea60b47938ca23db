//! The PostgreSQL server programs, and a command run beside a throw-away server.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::child::{Children, quiet};
use crate::cluster::Cluster;
use crate::install::Package;
use crate::workspace::which;

/// The major versions Pombo is made for.
const VERSIONS: RangeInclusive<u32> = 14..=18;

const PACKAGE: Package = Package {
    what: "the PostgreSQL server, version 14 to 18",
    debian: &["postgresql"],
    fedora: "postgresql-server",
    homebrew: "postgresql@17",
};

/// The programs of one installed server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Programs {
    /// The major version; first, so that the order of `Programs` is that of versions.
    pub(crate) major: u32,
    /// The directory of `initdb`, `pg_ctl` and `postgres`.
    pub(crate) bin: PathBuf,
}

impl Programs {
    /// The newest server that will do; installs one when there is none and that can be done.
    ///
    /// `POMBO_TEST_PG_BIN` in the environment names the one to take, for tests against a certain version.
    pub(crate) fn find_or_install(children: &mut Children) -> Result<Self> {
        if let Some(bin) = env::var_os("POMBO_TEST_PG_BIN") {
            let bin = PathBuf::from(bin);
            return Self::in_directory(&bin).with_context(|| {
                format!("POMBO_TEST_PG_BIN={} does not hold {}", bin.display(), PACKAGE.what)
            });
        }
        if let Some(found) = Self::find() {
            return Ok(found);
        }
        PACKAGE.install(children)?;
        Self::find().with_context(|| PACKAGE.missing())
    }

    fn find() -> Option<Self> {
        directories().iter().filter_map(|directory| Self::in_directory(directory)).max()
    }

    fn in_directory(directory: &Path) -> Option<Self> {
        // Distributions link single programs into /usr/local/bin and the like; their neighbours stand beside the
        // real file.
        let postgres = fs::canonicalize(directory.join("postgres")).ok()?;
        let bin = postgres.parent()?.to_path_buf();
        if !["initdb", "pg_ctl"].iter().all(|program| bin.join(program).is_file()) {
            return None;
        }
        let major = major(&quiet(Command::new(&postgres).arg("--version")).ok()?)?;
        VERSIONS.contains(&major).then_some(Self { major, bin })
    }
}

/// Where server programs may lie: distributions keep them out of `PATH`, one directory for each version.
fn directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        env::var_os("PATH").iter().flat_map(|path| env::split_paths(path).collect::<Vec<_>>()).collect();
    if let Some(pg_config) = which("pg_config") {
        directories.extend(quiet(Command::new(pg_config).arg("--bindir")).ok().map(PathBuf::from));
    }
    for major in VERSIONS {
        directories.push(format!("/usr/lib/postgresql/{major}/bin").into()); // Debian
        directories.push(format!("/usr/pgsql-{major}/bin").into()); // postgresql.org's packages for Fedora
        directories.push(format!("/opt/homebrew/opt/postgresql@{major}/bin").into()); // macOS on ARM
        directories.push(format!("/usr/local/opt/postgresql@{major}/bin").into()); // macOS on Intel
    }
    directories
}

/// The major version in `postgres (PostgreSQL) 15.17 (Debian 15.17-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let number = version.split("(PostgreSQL) ").nth(1)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

/// `cargo xtask postgres -- COMMAND`.
pub(crate) fn run_beside(children: &mut Children, command: &[OsString]) -> Result<u8> {
    let Some((program, arguments)) = command.split_first() else { bail!("no command given") };
    let cluster = Cluster::start(children)?;
    let mut command = Command::new(program);
    command.args(arguments);
    crate::workspace::without_cargo_run(&mut command);
    cluster.export(&mut command);
    cluster.export_to_clients(&mut command);
    children.run(&mut command)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Programs, major};

    #[test]
    fn major_version_is_read_from_what_each_system_prints() {
        assert_eq!(major("postgres (PostgreSQL) 15.17 (Debian 15.17-0+deb12u1)"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 18.1"), Some(18));
        assert_eq!(major("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major("postgres: command not found"), None);
    }

    #[test]
    fn newest_server_is_the_greatest() {
        let old = Programs { major: 14, bin: PathBuf::from("/z") };
        let new = Programs { major: 17, bin: PathBuf::from("/a") };
        assert_eq!([new.clone(), old].into_iter().max(), Some(new));
    }
}
