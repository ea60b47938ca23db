//! The command line: one module per command.

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::failure::{Failure, Outcome};
use crate::output::{self, Output};

mod bench;
mod check;
mod database_args;
mod dead;
mod deliveries;
mod demo;
mod endpoints;
mod events;
mod list;
mod listen;
mod migrate;
mod send;
mod serve;
mod sign;
mod verify;

/// Webhooks that are never lost.
#[derive(Debug, Parser)]
#[command(
    name = "pombo",
    version,
    about = "Webhooks that are never lost: sends, retries, signs and shows them. One binary, SQLite or PostgreSQL.",
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
struct Cli {
    /// Print JSON on stdout
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  pombo serve --dev                                      a server for trying things out
  pombo listen --register --types 'order.*'              a receiver that shows what it gets
  pombo send order.paid --data '{\"orderId\":\"ord_45\"}' --wait 30s
  pombo deliveries list --status retrying

Exit codes: 0 done, 1 failed, 2 wrong usage. Data goes to stdout, the rest to stderr.
Secrets may be given as @file, env:NAME or - (stdin).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::ServeArgs),
    /// The whole story on the embedded database, in a few seconds
    Demo(demo::DemoArgs),
    /// Bring a database's schema up, or look whether it needs to be
    Migrate(migrate::MigrateArgs),
    /// Prove from the database that nothing is lost
    Check(check::CheckArgs),
    /// Publish an event
    #[command(visible_alias = "trigger")]
    Send(send::SendArgs),
    /// Endpoints: where webhooks go
    Endpoints(endpoints::EndpointsArgs),
    /// Events: what happened
    Events(events::EventsArgs),
    /// Deliveries: one event on its way to one endpoint
    Deliveries(deliveries::DeliveriesArgs),
    /// Dead letters: deliveries that used up their attempts
    Dead(dead::DeadArgs),
    /// Receive webhooks and show them
    Listen(listen::ListenArgs),
    /// Sign a body as a provider does
    Sign(sign::SignArgs),
    /// Verify a signed request
    Verify(verify::VerifyArgs),
    /// How fast this machine delivers
    Bench(bench::BenchArgs),
    #[command(name = "bench-receiver", hide = true)]
    BenchReceiver,
    #[command(name = "bench-load", hide = true)]
    BenchLoad,
}

/// Reads the command line, does what it says, and says how it ended.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0, everything else to stderr with 2.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let output = Output::new(cli.json);
    match dispatch(cli.command, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(sentence) = failure.sentence() {
                output::note(&format!("error: {sentence}"));
            }
            failure.exit_code()
        }
    }
}

fn dispatch(command: Command, output: Output) -> Outcome {
    match command {
        Command::Demo(args) => large(demo::run(args, output)),
        Command::Bench(args) => small(bench::run(args, output)),
        Command::BenchReceiver => large(bench::run_receiver()),
        Command::BenchLoad => large(bench::run_load()),
        Command::Serve(args) => serve::run(&args),
        Command::Migrate(args) => small(migrate::run(args, output)),
        Command::Check(args) => small(check::run(args, output)),
        Command::Send(args) => small(send::run(args, output)),
        Command::Endpoints(args) => small(endpoints::run(args, output)),
        Command::Events(args) => small(events::run(args, output)),
        Command::Deliveries(args) => small(deliveries::run(args, output)),
        Command::Dead(args) => small(dead::run(args, output)),
        Command::Listen(args) => small(listen::run(args, output)),
        Command::Sign(args) => sign::run(&args, output),
        Command::Verify(args) => verify::run(&args, output),
    }
}

/// Runs a command that waits for the network and does little else: one thread is enough.
fn small(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .map_err(Failure::Failed)?;
    runtime.block_on(command)
}

/// Runs a command that works on several things at once.
fn large(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .map_err(Failure::Failed)?;
    runtime.block_on(command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
