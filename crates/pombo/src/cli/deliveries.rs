//! `pombo deliveries`: one event on its way to one endpoint.

use std::collections::HashMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::list::{self, Column, PageArgs};
use crate::client::{Answer, Client, ServerArgs, field};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, note};

const EXAMPLES: &str = "\
Examples:
  pombo deliveries list --status retrying --endpoint ep_01h455vb4pex5vsknk084sn02q
  pombo deliveries list --follow
  pombo deliveries show dlv_01h455vb4pex5vsknk084sn02q
  pombo deliveries retry dlv_01h455vb4pex5vsknk084sn02q --reason 'receiver is back'
  pombo deliveries cancel dlv_01h455vb4pex5vsknk084sn02q";

/// How often `--follow` looks.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Most deliveries that `--follow` remembers, to show each change once.
const FOLLOWED_MAX: usize = 10_000;

/// What a table of deliveries shows.
pub(crate) const DELIVERY_COLUMNS: [Column; 7] = [
    ("ID", "id"),
    ("STATUS", "status"),
    ("ATTEMPTS", "attempts"),
    ("LAST", "lastStatus"),
    ("TYPE", "type"),
    ("ENDPOINT", "endpointId"),
    ("CREATED", "createdAt"),
];

const ATTEMPT_COLUMNS: [Column; 6] = [
    ("N", "n"),
    ("STARTED", "startedAt"),
    ("CLASS", "class"),
    ("STATUS", "status"),
    ("MS", "durationMs"),
    ("MESSAGE", "message"),
];

/// Arguments of `pombo deliveries`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeliveriesArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: DeliveriesCommand,
}

#[derive(Debug, Subcommand)]
enum DeliveriesCommand {
    /// List deliveries, newest first
    List(DeliveriesListArgs),
    /// Show one delivery: every attempt, and why it waits
    Show {
        /// Id of the delivery, dlv_…
        id: String,
    },
    /// Try a delivery now (a delivered one once more), or bring a dead or cancelled one back
    Retry {
        /// Id of the delivery, dlv_…
        id: String,
        #[command(flatten)]
        reason: ReasonArgs,
        /// Even if the endpoint is paused or disabled
        #[arg(long)]
        force: bool,
    },
    /// Cancel a delivery that is not settled yet
    Cancel {
        /// Id of the delivery, dlv_…
        id: String,
        #[command(flatten)]
        reason: ReasonArgs,
    },
}

/// Why a person does something, for the audit log.
#[derive(Debug, Args)]
pub(crate) struct ReasonArgs {
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
struct DeliveriesListArgs {
    /// pending, sending, retrying, paused, delivered, dead or cancelled
    #[arg(long, value_name = "STATUS", value_parser =
        ["pending", "sending", "retrying", "paused", "delivered", "dead", "cancelled"], hide_possible_values = true)]
    status: Option<String>,
    /// Only to this endpoint
    #[arg(long, value_name = "ID")]
    endpoint: Option<String>,
    /// Only of this tenant
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Only of this event
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// Only of events of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only from this instant on, RFC 3339
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only before this instant, RFC 3339
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Go on and print each delivery again when it is new or has changed
    #[arg(long, conflicts_with = "after")]
    follow: bool,
    #[command(flatten)]
    page: PageArgs,
}

impl DeliveriesListArgs {
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = self.page.query();
        list::filter(&mut query, "status", self.status.as_ref());
        list::filter(&mut query, "endpoint", self.endpoint.as_ref());
        list::filter(&mut query, "tenant", self.tenant.as_ref());
        list::filter(&mut query, "event", self.event.as_ref());
        list::filter(&mut query, "type", self.kind.as_ref());
        list::filter(&mut query, "since", self.since.as_ref());
        list::filter(&mut query, "until", self.until.as_ref());
        query
    }
}

/// Runs it.
pub(crate) async fn run(args: DeliveriesArgs, output: Output) -> Outcome {
    let client = Client::new(&args.server)?;
    match args.command {
        DeliveriesCommand::List(filters) if filters.follow => follow(&client, &filters.query(), output).await,
        DeliveriesCommand::List(filters) => {
            list::print_page(&client, &["deliveries"], &filters.query(), &DELIVERY_COLUMNS, output).await
        }
        DeliveriesCommand::Show { id } => show(&client, &id, output).await,
        DeliveriesCommand::Retry { id, reason, force } => {
            let answer = retry(&client, &id, &reason, force).await?;
            print_retried(&answer, output)
        }
        DeliveriesCommand::Cancel { id, reason } => {
            let body = json!({"reason": reason.reason});
            let answer = client.post(&["deliveries", &id, "cancel"], Some(without_nulls(&body))).await?;
            list::print_one(&answer, output)
        }
    }
}

/// Asks for one delivery to be tried now.
pub(crate) async fn retry(client: &Client, id: &str, reason: &ReasonArgs, force: bool) -> Outcome<Answer> {
    let body = json!({"reason": reason.reason, "force": force.then_some(true)});
    client.post(&["deliveries", id, "retry"], Some(without_nulls(&body))).await
}

/// The object without fields that were not given: the API refuses what it does not know, null included.
pub(crate) fn without_nulls(object: &Value) -> Vec<u8> {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object.to_string().into_bytes()
}

fn print_retried(answer: &Answer, output: Output) -> Outcome {
    let retried: Value = answer.json()?;
    let attempt = retried.get("attempt").filter(|attempt| attempt.is_object());
    if output.is_json() {
        output.bytes(&answer.body)?;
    } else {
        if let Some(attempt) = attempt {
            output.table(&list::table(std::slice::from_ref(attempt), &ATTEMPT_COLUMNS))?;
        }
        let delivery = retried.get("delivery").unwrap_or(&retried);
        let (id, status) = (field(delivery, "id"), field(delivery, "status"));
        output.line(&format!("{id} {}, now {status}", field(&retried, "outcome")))?;
    }
    match attempt.map(|attempt| field(attempt, "class")) {
        Some(class) if class != "success" => {
            note(&format!("the attempt failed: {class}"));
            Err(Failure::Told)
        }
        _ => Ok(()),
    }
}

async fn show(client: &Client, id: &str, output: Output) -> Outcome {
    let answer = client.get(&["deliveries", id], &[]).await?;
    if output.is_json() {
        return output.bytes(&answer.body);
    }
    let delivery: Value = answer.json()?;
    list::print_fields(&delivery, &["timeline", "why"], output)?;
    if let Some(why) = delivery.get("why").filter(|why| why.is_object()) {
        output.line(&format!("\n{}", field(why, "text")))?;
    }
    match delivery.get("timeline").and_then(Value::as_array) {
        Some(attempts) if !attempts.is_empty() => {
            output.line("")?;
            output.table(&list::table(attempts, &ATTEMPT_COLUMNS))
        }
        _ => output.line("\nno attempt yet"),
    }
}

/// Looks again and again, and prints what is new or has changed, oldest first, until interrupted.
async fn follow(client: &Client, query: &[(&str, String)], output: Output) -> Outcome {
    let mut seen: HashMap<String, (String, String)> = HashMap::new();
    loop {
        let page: Value = client.get(&["deliveries"], query).await?.json()?;
        let items = page.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
        if seen.len() > FOLLOWED_MAX {
            // What is on the page stays known; older ones are not looked at any more.
            let shown: Vec<String> = items.iter().map(|item| field(item, "id")).collect();
            seen.retain(|id, _| shown.contains(id));
        }
        for item in items.iter().rev() {
            let state = (field(item, "status"), field(item, "attempts"));
            if seen.insert(field(item, "id"), state.clone()).as_ref() == Some(&state) {
                continue;
            }
            if output.is_json() {
                output.bytes(item.to_string().as_bytes())?;
            } else {
                let cells: Vec<String> = DELIVERY_COLUMNS.iter().map(|(_, name)| field(item, name)).collect();
                output.line(&cells.join("  "))?;
            }
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}
