//! The project's own commands, run as `cargo xtask …` (the alias stands in `.cargo/config.toml`).
//!
//! `cargo xtask test` is the one test command: it finds or installs what the tests need, starts a
//! throw-away PostgreSQL, runs every test and leaves nothing running. Nothing here is part of Pombo.

use std::env;
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
        /// Arguments of `cargo test`, and after `--` those of the test programs.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
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
    match run(Cli::parse_from(with_kept_dashes(env::args_os().collect())).command) {
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
        Command::Test { arguments } => test::run(&mut children, &arguments),
        Command::Postgres { command } => postgres::run_beside(&mut children, &command),
        Command::Ci => ci::run(&mut children),
    }
}

/// Doubles the `--` of `test -- FILTER`: clap takes one away where it comes first, and `cargo test` needs it.
fn with_kept_dashes(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|command| command == "test")
        && arguments.get(2).is_some_and(|a| a == "--")
    {
        arguments.insert(2, "--".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, with_kept_dashes};

    fn test_arguments(line: &str) -> Vec<String> {
        let line = line.split_whitespace().map(OsString::from).collect();
        match Cli::parse_from(with_kept_dashes(line)).command {
            Command::Test { arguments } => {
                arguments.into_iter().map(|a| a.into_string().expect("the test's words are UTF-8")).collect()
            }
            other => panic!("not the test command: {other:?}"),
        }
    }

    #[test]
    fn arguments_reach_cargo_test_as_they_were_typed() {
        for typed in
            ["", "-p pombo", "-p pombo --lib -- --nocapture", "-- --nocapture", "-- claims", "claims -- -q"]
        {
            assert_eq!(test_arguments(&format!("xtask test {typed}")).join(" "), typed);
        }
    }

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
