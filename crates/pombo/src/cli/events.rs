//! `pombo events`: what happened.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::deliveries::DELIVERY_COLUMNS;
use crate::cli::list::{self, Column, PageArgs};
use crate::client::{Client, ServerArgs};
use crate::failure::Outcome;
use crate::output::{Output, note};

const EXAMPLES: &str = "\
Examples:
  pombo events list --tenant acme --type order.paid.v1
  pombo events list --unmatched                          events that no endpoint took
  pombo events show evt_01h455vb4pex5vsknk084sn02q
  pombo events show evt_01h455vb4pex5vsknk084sn02q --body > body.json";

const EVENT_COLUMNS: [Column; 5] = [
    ("ID", "id"),
    ("TYPE", "type"),
    ("TENANT", "tenant"),
    ("DELIVERIES", "deliveryCount"),
    ("CREATED", "createdAt"),
];

/// Arguments of `pombo events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// List events, newest first
    List(EventsListArgs),
    /// Show one event with its deliveries
    Show {
        /// Id of the event, evt_…
        id: String,
        /// Print the exact bytes of its body instead
        #[arg(long)]
        body: bool,
    },
}

#[derive(Debug, Args)]
struct EventsListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only from this instant on, RFC 3339
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only before this instant, RFC 3339
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only events that no endpoint took
    #[arg(long)]
    unmatched: bool,
    #[command(flatten)]
    page: PageArgs,
}

/// Runs it.
pub(crate) async fn run(args: EventsArgs, output: Output) -> Outcome {
    let client = Client::new(&args.server)?;
    match args.command {
        EventsCommand::List(filters) => {
            let mut query = filters.page.query();
            list::filter(&mut query, "tenant", filters.tenant.as_ref());
            list::filter(&mut query, "type", filters.kind.as_ref());
            list::filter(&mut query, "since", filters.since.as_ref());
            list::filter(&mut query, "until", filters.until.as_ref());
            list::filter(&mut query, "unmatched", filters.unmatched.then_some(&true));
            list::print_page(&client, &["events"], &query, &EVENT_COLUMNS, output).await
        }
        EventsCommand::Show { id, body: true } => {
            let answer = client.get(&["events", &id, "body"], &[]).await?;
            output.exact(&answer.body)
        }
        EventsCommand::Show { id, body: false } => show(&client, &id, output).await,
    }
}

async fn show(client: &Client, id: &str, output: Output) -> Outcome {
    let answer = client.get(&["events", id], &[]).await?;
    if output.is_json() {
        return output.bytes(&answer.body);
    }
    let event: Value = answer.json()?;
    list::print_fields(&event, &["deliveries", "deliveriesNext", "unmatched"], output)?;
    print_items(&event, "deliveries", &DELIVERY_COLUMNS, output)?;
    print_items(&event, "unmatched", &[("NOT SENT TO", "endpointId"), ("WHY", "text")], output)
}

/// Prints a list that stands inside an answer.
fn print_items(value: &Value, name: &str, columns: &[Column], output: Output) -> Outcome {
    match value.get(name).and_then(Value::as_array) {
        Some(items) if !items.is_empty() => {
            output.line("")?;
            output.table(&list::table(items, columns))
        }
        Some(_) if name == "deliveries" => {
            note("no endpoint took this event");
            Ok(())
        }
        _ => Ok(()),
    }
}
