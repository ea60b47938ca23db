//! `cargo xtask ci`: what must hold before a change lands, the quick checks first.

use anyhow::{Context, Result};

use crate::child::Children;
use crate::say::say;
use crate::test;
use crate::workspace::{cargo, which};

/// The checks before the tests, as arguments of `cargo`.
const CHECKS: &[&[&str]] = &[
    &["fmt", "--all", "--check"],
    // Advisories need a database from the network and are checked elsewhere; these need only the lock file. A wall
    // that nothing may pass names a wrapper that does not exist, which is no reason for a warning.
    &["deny", "--locked", "check", "--allow", "unused-wrapper", "bans", "licenses", "sources"],
    &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"],
];

/// Runs every check, then the tests; stops at the first that fails and returns its exit code.
pub(crate) fn run(children: &mut Children) -> Result<u8> {
    which("cargo-deny")
        .context("cargo-deny is missing; install it with `cargo install --locked cargo-deny`")?;
    for check in CHECKS {
        say(&format!("cargo {}", check.join(" ")));
        let code = children.run(cargo().args(*check))?;
        if code != 0 {
            return Ok(code);
        }
    }
    say("cargo xtask test");
    // Whoever reads the result later wants every failure, not the first crate's.
    test::run(children, &["--locked".into(), "--no-fail-fast".into()])
}
