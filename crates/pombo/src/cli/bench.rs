//! `pombo bench`: how fast this machine delivers. Load, receiver and server are processes of their own; the
//! same load straight to the receiver is the measure, for absolute figures say more of the machine than of Pombo.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Outcome};
use crate::output::Output;

mod connection;
mod counters;
mod event;
mod hardware;
mod latency;
mod ledger;
mod load;
mod messages;
mod process;
mod receiver;
mod report;
mod scenarios;
mod scratch;
mod server;
mod speech;
mod stage;
mod worker;

pub(crate) use load::run as run_load;
pub(crate) use receiver::run as run_receiver;

use report::Report;
use scenarios::{Bench, Name, Size};
use scratch::{Named, Scratch};
use stage::Stage;

/// Most seconds of a course of load.
const SECONDS_MAX: u32 = 600;
/// Most events of a course of load.
const EVENTS_MAX: u64 = 10_000_000;

const EXAMPLES: &str = "\
Examples:
  pombo bench                                          on SQLite, in the temporary directory
  pombo bench --database postgres://localhost/postgres in a scratch database on that server
  pombo bench --scenario api,idle --seconds 30 --json

Only --database is heeded, no setting and no other variable. Beside the database it names a scratch database is
made and dropped again; its own data is not touched. Exits with 1 if an accepted event was lost.";

/// Arguments of `pombo bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// What to measure (default: everything the database can do)
    #[arg(long = "scenario", value_name = "NAME", value_enum, value_delimiter = ',')]
    scenarios: Vec<Name>,
    /// Beside which database: sqlite:PATH, a path ending in .db, or postgres://… (default: a temporary file)
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Length of each course of load
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SECONDS_MAX)))]
    seconds: u32,
    /// Instead: so many events in each course of full load, and so many rows in the outbox
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=EVENTS_MAX))]
    events: Option<u64>,
    /// Clients of the API under full load, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=2048))]
    clients: u16,
}

/// Measures and prints. Whatever ends it, nothing is left running and no database is left behind.
pub(crate) async fn run(args: BenchArgs, output: Output) -> Outcome {
    let report = tokio::select! {
        report = measure(args, output) => report?,
        failure = interrupted() => return Err(failure),
    };
    report.print(output)?;
    match report.lost() {
        0 => Ok(()),
        lost => Err(Failure::failed(format!("{lost} accepted deliveries were lost"))),
    }
}

async fn measure(args: BenchArgs, output: Output) -> Outcome<Report> {
    let named = named(args.database.as_deref())?;
    let is_postgres = matches!(named, Named::Postgres(_));
    let scenarios = chosen(args.scenarios, is_postgres)?;
    let (hardware, database_version) = {
        let scratch = Scratch::make(&named).await?;
        (hardware::describe(scratch.directory())?, counters::version(&scratch).await?)
    };
    let size =
        Size { seconds: f64::from(args.seconds), events: args.events, clients: usize::from(args.clients) };
    let mut bench = Bench { stage: Stage::set(output).await?, named, size, output };
    let mut report = Report {
        database: if is_postgres { "postgres" } else { "sqlite" },
        database_version,
        hardware,
        raw_per_second: 0.0,
        raw_runs_per_second: vec![bench.raw().await?],
        scenarios: Vec::new(),
    };
    for scenario in scenarios {
        report.scenarios.push(bench.measure(scenario).await?);
        report.raw_runs_per_second.push(bench.raw().await?);
    }
    report.finish();
    Ok(report)
}

fn chosen(names: Vec<Name>, is_postgres: bool) -> Outcome<Vec<Name>> {
    if !is_postgres && names.contains(&Name::Two) {
        return Err(Failure::usage(
            "`two` needs PostgreSQL: a SQLite file belongs to one process; name a server with --database",
        ));
    }
    if !names.is_empty() {
        return Ok(names);
    }
    let mut all = vec![Name::Api, Name::Outbox, Name::Fanout, Name::Idle];
    all.extend(is_postgres.then_some(Name::Two));
    Ok(all)
}

fn named(database: Option<&str>) -> Outcome<Named> {
    let Some(text) = database else { return Ok(Named::Sqlite(None)) };
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let options = text.parse().map_err(|error| {
            Failure::usage(format!(
                "--database is not a PostgreSQL address such as postgres://localhost/pombo: {error}"
            ))
        })?;
        return Ok(Named::Postgres(Box::new(options)));
    }
    let path = Path::new(text.strip_prefix("sqlite:").unwrap_or(text));
    if !text.starts_with("sqlite:") && path.extension().is_none_or(|extension| extension != "db") {
        return Err(Failure::usage("--database must be sqlite:PATH, a path ending in .db, or postgres://…"));
    }
    let beside = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(Failure::usage("--database names a directory, not a file")),
    };
    let beside = beside.canonicalize().with_context(|| format!("cannot find {}", beside.display()))?;
    Ok(Named::Sqlite(Some(beside)))
}

/// Ctrl-C, a termination, or the terminal's end. What runs is dropped then, which ends every child.
async fn interrupted() -> Failure {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [interrupt, terminate, hangup] = kinds.map(signal);
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) = (interrupt, terminate, hangup) else {
        return Failure::failed("cannot catch signals");
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Failure::failed("interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_need_a_server() {
        assert!(matches!(chosen(vec![Name::Two], false), Err(Failure::Usage(_))));
        assert!(chosen(Vec::new(), true).is_ok_and(|names| names.contains(&Name::Two)));
        assert!(chosen(Vec::new(), false).is_ok_and(|names| !names.contains(&Name::Two)));
    }

    #[test]
    fn databases_are_named_as_everywhere() {
        assert!(matches!(named(None), Ok(Named::Sqlite(None))));
        assert!(matches!(named(Some("sqlite:pombo.db")), Ok(Named::Sqlite(Some(_)))));
        assert!(matches!(named(Some("./pombo.db")), Ok(Named::Sqlite(Some(_)))));
        assert!(matches!(named(Some("postgres://localhost/x")), Ok(Named::Postgres(_))));
        assert!(matches!(named(Some("mysql://x")), Err(Failure::Usage(_))));
    }
}
