//! `pombo send`: publish an event, and wait for what becomes of it.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;
use pombo_domain::{json, span};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::argument::{DataArg, span_arg};
use crate::cli::deliveries::DELIVERY_COLUMNS;
use crate::cli::list;
use crate::client::{Client, ServerArgs, field};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, note};

const EXAMPLES: &str = "\
Examples:
  pombo send order.paid --data '{\"orderId\":\"ord_45\",\"amount\":12990}'
  pombo send order.paid --tenant acme --data @order.json --id order-45-paid --wait 30s
  jq -c .order shop.json | pombo send order.paid --data -

With --wait the exit code is 0 only if every delivery of the event was delivered in that time.";

/// How often `--wait` looks, at first and at last.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Arguments of `pombo send`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    /// Type of the event, such as order.paid.v1
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Whose endpoints get it (default: the tenant `default`)
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Its data: JSON, or @file, or - for stdin; kept byte for byte
    #[arg(long, value_name = "JSON", value_parser = DataArg::parse, default_value = "{}")]
    data: DataArg,
    /// What orders it; kept for ordered endpoints of a later release
    #[arg(long, value_name = "K")]
    ordering_key: Option<String>,
    /// Your own id: sending it again with the same content makes no second event
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only to this endpoint (may be repeated)
    #[arg(long = "endpoint", value_name = "ID")]
    endpoints: Vec<String>,
    /// A counter of yours by which receivers drop what is older
    #[arg(long, value_name = "N")]
    resource_version: Option<u64>,
    /// Not before this instant, RFC 3339
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    /// Wait until every delivery is settled, at most this long
    #[arg(long, value_name = "DURATION", value_parser = span_arg)]
    wait: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The request, with `data` as it was given.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventRequest<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    data: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<&'a str>,
}

/// Runs it.
pub(crate) async fn run(args: SendArgs, output: Output) -> Outcome {
    let client = Client::new(&args.server)?;
    let request = EventRequest {
        kind: &args.kind,
        tenant: args.tenant.as_deref(),
        data: data(&args.data)?,
        id: args.id.as_deref(),
        ordering_key: args.ordering_key.as_deref(),
        endpoints: (!args.endpoints.is_empty()).then_some(&args.endpoints),
        resource_version: args.resource_version,
        deliver_at: args.deliver_at.as_deref(),
    };
    let body = serde_json::to_vec(&request).context("cannot write the event as JSON")?;
    let answer = client.post(&["events"], Some(body)).await?;
    let accepted: Value = answer.json()?;
    let Some(limit) = args.wait else {
        return if output.is_json() { output.bytes(&answer.body) } else { print_accepted(&accepted, output) };
    };
    if !output.is_json() {
        print_accepted(&accepted, output)?;
    }
    let wait = Wait { event: field(&accepted, "id"), deliveries: count(&accepted), limit };
    let deliveries = wait.until_settled(&client, output).await?;
    report(accepted, &deliveries, &wait, output)
}

/// Not looked into, but checked here: within the request, a broken value would be reported at another place.
fn data(given: &DataArg) -> Outcome<Box<RawValue>> {
    let bytes = given.read()?;
    let hint = "strings need quotes: --data '\"text\"'";
    json::check(&bytes).map_err(|error| Failure::usage(format!("--data {error} ({hint})")))?;
    let text = String::from_utf8(bytes).map_err(|_| Failure::usage("--data must be UTF-8"))?;
    Ok(RawValue::from_string(text).context("--data is no JSON")?)
}

fn count(accepted: &Value) -> usize {
    accepted.get("deliveries").and_then(Value::as_u64).unwrap_or(0) as usize
}

fn print_accepted(accepted: &Value, output: Output) -> Outcome {
    let deliveries = match count(accepted) {
        0 => "no endpoint takes it".to_owned(),
        1 => "1 delivery".to_owned(),
        more => format!("{more} deliveries"),
    };
    let (id, kind, tenant) = (field(accepted, "id"), field(accepted, "type"), field(accepted, "tenant"));
    output.line(&format!("{id}  {kind}  tenant {tenant}  {deliveries}"))
}

struct Wait {
    event: String,
    deliveries: usize,
    limit: Duration,
}

impl Wait {
    /// The event's deliveries once all are settled, or as they are when the time is over.
    async fn until_settled(&self, client: &Client, output: Output) -> Outcome<Vec<Value>> {
        let started = Instant::now();
        let bar = output.bar("settled", self.deliveries as u64);
        let mut pause = POLL.0;
        loop {
            let deliveries = self.look(client, &bar).await?;
            let is_settled = deliveries.len() >= self.deliveries && deliveries.iter().all(is_settled);
            let left = self.limit.saturating_sub(started.elapsed());
            if is_settled || left.is_zero() {
                bar.finish_and_clear();
                return Ok(deliveries);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(POLL.1);
        }
    }

    async fn look(&self, client: &Client, bar: &ProgressBar) -> Outcome<Vec<Value>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        // An event has as many deliveries as it was accepted with, so the pages end.
        while found.len() < self.deliveries {
            let mut query = vec![("event", self.event.clone()), ("limit", "250".to_owned())];
            list::filter(&mut query, "after", after.as_ref());
            let page: Value = client.get(&["deliveries"], &query).await?.json()?;
            found.extend(page.get("data").and_then(Value::as_array).cloned().unwrap_or_default());
            match page.get("next").and_then(Value::as_str) {
                Some(next) => after = Some(next.to_owned()),
                None => break,
            }
        }
        bar.set_position(found.iter().filter(|delivery| is_settled(delivery)).count() as u64);
        Ok(found)
    }
}

fn is_settled(delivery: &Value) -> bool {
    matches!(field(delivery, "status").as_str(), "delivered" | "dead" | "cancelled")
}

fn report(accepted: Value, deliveries: &[Value], wait: &Wait, output: Output) -> Outcome {
    let with = |status: &str| deliveries.iter().filter(|item| field(item, "status") == status).count();
    let delivered = with("delivered");
    let is_delivered = delivered == wait.deliveries && delivered > 0;
    if output.is_json() {
        let mut document = accepted;
        document["delivered"] = Value::Bool(is_delivered);
        document["results"] = Value::Array(deliveries.to_vec());
        output.json(&document)?;
    } else if !deliveries.is_empty() {
        output.table(&list::table(deliveries, &DELIVERY_COLUMNS))?;
    }
    if is_delivered {
        return Ok(());
    }
    let settled = deliveries.iter().filter(|delivery| is_settled(delivery)).count();
    note(&match wait.deliveries {
        0 => "not delivered: no endpoint of this tenant takes this type of event".to_owned(),
        all if settled < all => {
            format!("{delivered} of {all} delivered within {}; the rest goes on", span::show(wait.limit))
        }
        all => {
            format!("{delivered} of {all} delivered, {} dead, {} cancelled", with("dead"), with("cancelled"))
        }
    });
    Err(Failure::Told)
}
