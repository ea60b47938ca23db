//! Python and Node: the tests check Pombo's signatures with other people's libraries, as receivers will.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::child::{Children, quiet};
use crate::install::Package;
use crate::say::say;
use crate::workspace::{scratch, which, which_all};

/// The official Python library of Standard Webhooks. One version, so that a run tomorrow tests the same.
const LIBRARY: &str = "standardwebhooks==1.1.0";
const NODE_MAJOR_MIN: u32 = 18;

const PYTHON: Package = Package {
    what: "Python 3 with venv",
    debian: &["python3", "python3-venv"],
    fedora: "python3",
    homebrew: "python3",
};
const NODE: Package =
    Package { what: "Node, version 18 or newer", debian: &["nodejs"], fedora: "nodejs", homebrew: "node" };

/// The interpreters the tests use.
#[derive(Debug)]
pub(crate) struct Receivers {
    python: PathBuf,
    node: PathBuf,
}

impl Receivers {
    /// Finds both, and installs what is missing where that can be done; never goes on without.
    pub(crate) fn find_or_install(children: &mut Children) -> Result<Self> {
        Ok(Self { node: node(children)?, python: python(children)? })
    }

    /// Tells the tests where the interpreters are.
    pub(crate) fn export(&self, command: &mut Command) {
        command.env("POMBO_TEST_PYTHON", &self.python).env("POMBO_TEST_NODE", &self.node);
    }
}

fn node(children: &mut Children) -> Result<PathBuf> {
    if let Some(node) = find_node() {
        return Ok(node);
    }
    NODE.install(children)?;
    find_node().with_context(|| NODE.missing())
}

/// The first Node in `PATH` that is new enough. Debian called the program `nodejs` for a while.
fn find_node() -> Option<PathBuf> {
    ["node", "nodejs"].iter().flat_map(|name| which_all(name)).find(|program| {
        let version = quiet(Command::new(program).arg("--version")).ok();
        version.as_deref().and_then(node_major).is_some_and(|major| major >= NODE_MAJOR_MIN)
    })
}

/// The major version in `v20.20.2`.
fn node_major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The interpreter of a virtual environment that has the library, made when it is not there yet.
fn python(children: &mut Children) -> Result<PathBuf> {
    let environment = scratch().join("python");
    let python = environment.join("bin/python");
    if has_library(&python) {
        return Ok(python);
    }
    say(&format!("installing {LIBRARY} for the tests"));
    make_environment(children, &environment)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", LIBRARY]);
    children.run_ok(&mut pip).with_context(|| {
        format!("cannot install {LIBRARY}; make a virtual environment with it at {}", environment.display())
    })?;
    if !has_library(&python) {
        bail!("{} does not find {LIBRARY} after its installation", python.display());
    }
    Ok(python)
}

/// Makes an empty virtual environment, anew where a half-made one stands.
fn make_environment(children: &mut Children, environment: &Path) -> Result<()> {
    if environment.exists() {
        fs::remove_dir_all(environment)?;
    }
    let make = || -> Result<()> {
        let python3 = which("python3").context("no python3 in PATH")?;
        quiet(Command::new(python3).args(["-m", "venv"]).arg(environment)).map(drop)
    };
    if make().is_ok() {
        return Ok(());
    }
    PYTHON.install(children)?;
    // Debian's python3 without python3-venv leaves half an environment.
    if environment.exists() {
        fs::remove_dir_all(environment)?;
    }
    make().with_context(|| PYTHON.missing())
}

fn has_library(python: &Path) -> bool {
    let (name, version) = LIBRARY.split_once("==").expect("LIBRARY names a version");
    let check = format!("import {name}, importlib.metadata as m; assert m.version('{name}') == '{version}'");
    python.is_file() && quiet(Command::new(python).args(["-c", &check])).is_ok()
}

#[cfg(test)]
mod tests {
    use super::node_major;

    #[test]
    fn node_version_is_read() {
        assert_eq!(node_major("v20.20.2"), Some(20));
        assert_eq!(node_major("v6.0.0"), Some(6));
        assert_eq!(node_major("nodejs 20"), None);
    }
}
