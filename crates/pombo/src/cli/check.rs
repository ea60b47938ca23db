//! `pombo check`: prove from the database that every event is accounted for.

use clap::Args;
use pombo_store::admin::CheckReport;
use serde_json::{Value, json};

use crate::cli::database_args::DatabaseArgs;
use crate::failure::{Failure, Outcome};
use crate::master_key::MasterKey;
use crate::output::{Output, note};
use crate::wire::{self, Access};

const EXAMPLES: &str = "\
Examples:
  pombo check
  pombo check --database postgres://pombo@db/pombo --json

Works beside a server that runs, and changes nothing. Exit codes: 0 sound, 1 something is wrong.";

/// The invariant that needs the master key: every sealed value opens.
const SEALED: &str = "sealed";

/// Arguments of `pombo check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Runs it.
pub(crate) async fn run(args: CheckArgs, output: Output) -> Outcome {
    let (settings, database) = args.database.read(None, None)?;
    note(&format!("using {}", database.announcement()));
    let key = MasterKey::for_looking(&database.url, settings.master_key_file.as_deref())?;
    let spinner = output.spinner("checking");
    let checked = async {
        let store = wire::open(&database, &key, &settings, Access::Read).await?;
        wire::need_schema(&database, store.as_ref()).await?;
        store.check().await.map_err(|error| database.failure(error))
    };
    let report = checked.await;
    spinner.finish_and_clear();
    let mut report = report?;
    if !key.is_given() {
        // Without the key nothing can be said of what is sealed with it.
        let before = report.findings.len();
        report.findings.retain(|finding| finding.invariant != SEALED);
        if report.findings.len() < before {
            note("no master key is given (POMBO_MASTER_KEY), so sealed secrets were not looked at");
        }
    }
    print(&report, output)?;
    if report.findings.is_empty() { Ok(()) } else { Err(Failure::Told) }
}

fn print(report: &CheckReport, output: Output) -> Outcome {
    if output.is_json() {
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|finding| {
                json!({ "invariant": finding.invariant, "count": finding.count, "text": finding.text })
            })
            .collect();
        return output.json(&json!({
            "ok": report.findings.is_empty(),
            "events": report.events,
            "live": report.live,
            "settled": report.settled,
            "dead": report.dead,
            "findings": findings,
        }));
    }
    let CheckReport { events, live, settled, dead, findings } = report;
    output.line(&format!(
        "{events} events, {live} live deliveries, {settled} settled deliveries, {dead} dead letters"
    ))?;
    if findings.is_empty() {
        return output.line("sound: every event is accounted for");
    }
    findings.iter().try_for_each(|finding| {
        output.line(&format!("WRONG {} ({}): {}", finding.invariant, finding.count, finding.text))
    })
}
