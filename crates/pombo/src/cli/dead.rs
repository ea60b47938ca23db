//! `pombo dead`: deliveries that used up their attempts or failed for good. They are kept, and can come back.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::deliveries::{self, ReasonArgs};
use crate::cli::list::{self, Column, PageArgs};
use crate::client::{Client, ServerArgs, field};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, note};

const EXAMPLES: &str = "\
Examples:
  pombo dead list --tenant acme
  pombo dead retry dlv_01h455vb4pex5vsknk084sn02q --reason 'receiver fixed'
  pombo dead retry --all --endpoint ep_01h455vb4pex5vsknk084sn02q";

const DEAD_COLUMNS: [Column; 7] = [
    ("DELIVERY", "deliveryId"),
    ("TYPE", "type"),
    ("TENANT", "tenant"),
    ("ENDPOINT", "endpointId"),
    ("CLASS", "class"),
    ("STATUS", "status"),
    ("DIED", "diedAt"),
];

/// Items asked for at once by `--all`.
const PAGE: &str = "250";

/// Arguments of `pombo dead`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeadArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        filter: DeadFilterArgs,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Bring dead letters back: same delivery id, schedule from the start
    Retry(DeadRetryArgs),
}

#[derive(Debug, Args)]
struct DeadFilterArgs {
    /// Only of this tenant
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Only to this endpoint
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Only of events of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only those that died at or after this instant, RFC 3339
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those that died before this instant, RFC 3339
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl DeadFilterArgs {
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        list::filter(&mut query, "tenant", self.tenant.as_ref());
        list::filter(&mut query, "endpoint", self.endpoint.as_ref());
        list::filter(&mut query, "type", self.kind.as_ref());
        list::filter(&mut query, "since", self.since.as_ref());
        list::filter(&mut query, "until", self.until.as_ref());
        query
    }
}

#[derive(Debug, Args)]
struct DeadRetryArgs {
    /// Ids of the deliveries, dlv_…
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Every dead letter that the filters leave
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: DeadFilterArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    /// Even where the endpoint is paused or disabled
    #[arg(long)]
    force: bool,
}

/// Runs it.
pub(crate) async fn run(args: DeadArgs, output: Output) -> Outcome {
    let client = Client::new(&args.server)?;
    match args.command {
        DeadCommand::List { filter, page } => {
            let mut query = filter.query();
            query.extend(page.query());
            list::print_page(&client, &["dead-letters"], &query, &DEAD_COLUMNS, output).await
        }
        DeadCommand::Retry(retry) => {
            let ids = if retry.all { all_ids(&client, &retry.filter).await? } else { retry.ids.clone() };
            revive(&client, &ids, &retry, output).await
        }
    }
}

/// The set is fixed before the first one is brought back, so that one that dies again is not taken twice.
async fn all_ids(client: &Client, filter: &DeadFilterArgs) -> Outcome<Vec<String>> {
    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut query = filter.query();
        query.push(("limit", PAGE.to_owned()));
        list::filter(&mut query, "after", after.as_ref());
        let page: Value = client.get(&["dead-letters"], &query).await?.json()?;
        let items = page.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
        ids.extend(items.iter().map(|item| field(item, "deliveryId")));
        match page.get("next").and_then(Value::as_str) {
            Some(next) if !items.is_empty() => after = Some(next.to_owned()),
            _ => return Ok(ids),
        }
    }
}

async fn revive(client: &Client, ids: &[String], args: &DeadRetryArgs, output: Output) -> Outcome {
    let bar = output.bar("bringing back", ids.len() as u64);
    let (mut revived, mut failed) = (0, 0);
    for id in ids {
        match deliveries::retry(client, id, &args.reason, args.force).await {
            Ok(answer) => {
                let lives = field(&answer.json::<Value>()?, "outcome") == "revived";
                revived += usize::from(lives);
                bar.suspend(|| match output.is_json() {
                    true => output.bytes(&answer.body),
                    false if lives => output.line(id),
                    false => output.line(&format!("{id} was not dead: one attempt was made")),
                })?;
            }
            Err(failure @ (Failure::Usage(_) | Failure::ReaderGone)) => return Err(failure),
            Err(failure) => {
                failed += 1;
                let why = failure.sentence().unwrap_or_default();
                bar.suspend(|| note(&format!("{id}: {why}")));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    note(&format!("{revived} brought back, {failed} failed"));
    if failed == 0 { Ok(()) } else { Err(Failure::Told) }
}
