//! The project's own commands, run as `cargo xtask …` (the alias stands in `.cargo/config.toml`).
//!
//! `cargo xtask test` is the one test command: it finds or installs what the tests need, starts a
//! throw-away PostgreSQL, runs every test and leaves nothing running. Nothing here is part of Pombo.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod child;
mod ci;
mod cluster;
mod install;
mod leftovers;
mod postgres;
mod receivers;
mod say;
mod test;
mod workspace;

/// The commands of the project's developers.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the tests with everything they need: PostgreSQL, Python and Node.
    ///
    /// Arguments are those of `cargo test`; without `-p`, the whole workspace is tested:
    /// `cargo xtask test`, `cargo xtask test -p pombo-store -- claims`.
    Test {
        /// Arguments of `cargo test`.
        #[arg(allow_hyphen_values = true, value_name = "CARGO TEST ARGUMENTS")]
        cargo: Vec<OsString>,
        /// Arguments of the test programs.
        #[arg(last = true, value_name = "TEST ARGUMENTS")]
        program: Vec<OsString>,
    },
    /// Run a command beside a throw-away PostgreSQL, then stop and remove it.
    ///
    /// The command sees `POMBO_TEST_POSTGRES` (its URL) and `POMBO_TEST_PG_BIN` (the server's programs):
    /// `cargo xtask postgres -- cargo test -p pombo-store-postgres`.
    Postgres {
        /// The command and its arguments.
        #[arg(required = true, last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Everything that must hold before a change lands: formatting, lints, dependencies, tests.
    Ci,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<u8> {
    let mut children = child::Children::listen()?;
    match command {
        Command::Test { cargo, program } => test::run(&mut children, &cargo, &program),
        Command::Postgres { command } => postgres::run_beside(&mut children, &command),
        Command::Ci => ci::run(&mut children),
    }
}
