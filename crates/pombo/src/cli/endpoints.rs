//! `pombo endpoints`: where webhooks go.

use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use crate::argument::{DataArg, HeaderArg, SecretArg, span_arg};
use crate::cli::deliveries::{ReasonArgs, without_nulls};
use crate::cli::list::{self, Column, PageArgs};
use crate::client::{Client, ServerArgs, field};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, note};

const EXAMPLES: &str = "\
Examples:
  pombo endpoints create https://example.com/hooks --tenant acme --types 'order.*,invoice.paid'
  pombo endpoints update ep_01h455vb4pex5vsknk084sn02q --timeout 5s --retry '{\"schedule\":[\"0s\",\"1m\"]}'
  pombo endpoints test ep_01h455vb4pex5vsknk084sn02q
  pombo endpoints pause ep_01h455vb4pex5vsknk084sn02q --reason 'maintenance until noon'
  pombo endpoints rotate-secret ep_01h455vb4pex5vsknk084sn02q --overlap 24h";

const ENDPOINT_COLUMNS: [Column; 6] = [
    ("ID", "id"),
    ("STATUS", "status"),
    ("TENANT", "tenant"),
    ("TYPES", "eventTypes"),
    ("URL", "url"),
    ("CREATED", "createdAt"),
];

/// Arguments of `pombo endpoints`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EndpointsArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: EndpointsCommand,
}

#[derive(Debug, Subcommand)]
enum EndpointsCommand {
    /// List endpoints, newest first
    List {
        /// Only this tenant's
        #[arg(long, value_name = "T")]
        tenant: Option<String>,
        /// active, paused or disabled
        #[arg(long, value_name = "STATUS", value_parser = ["active", "paused", "disabled"],
            hide_possible_values = true)]
        status: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Make an endpoint; prints its signing secret, once
    Create(EndpointsCreateArgs),
    /// Show one endpoint
    Show(IdArgs),
    /// Change what is given and leave the rest
    Update {
        #[command(flatten)]
        id: IdArgs,
        /// Where to
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Delete an endpoint; what is not settled yet is cancelled
    Delete(ActArgs),
    /// Stop sending; nothing is dropped
    Pause(ActArgs),
    /// Send again, the backlog first
    Resume(ActArgs),
    /// Send pombo.test now and show the attempt
    Test(IdArgs),
    /// Make a new signing secret; the old one signs too for a while
    RotateSecret {
        #[command(flatten)]
        act: ActArgs,
        /// How long the old one signs too (24h where not given)
        #[arg(long, value_name = "DURATION", value_parser = span_arg)]
        overlap: Option<Duration>,
    },
    /// Show the signing secret (noted in the audit log)
    Secret(IdArgs),
}

#[derive(Debug, Args)]
struct IdArgs {
    /// Id of the endpoint, ep_…
    id: String,
}

#[derive(Debug, Args)]
struct ActArgs {
    #[command(flatten)]
    id: IdArgs,
    #[command(flatten)]
    reason: ReasonArgs,
}

#[derive(Debug, Args)]
struct EndpointsCreateArgs {
    /// Where to
    #[arg(value_name = "URL", required_unless_present = "url")]
    target: Option<String>,
    /// The same as the first argument
    #[arg(long, value_name = "URL", conflicts_with = "target", hide = true)]
    url: Option<String>,
    /// Whose it is (default: the tenant `default`)
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// A signing secret of your own, whsec_…; or @file, env:NAME, - for stdin
    #[arg(long, value_name = "SECRET", value_parser = SecretArg::parse)]
    secret: Option<SecretArg>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// What a person sets on an endpoint.
#[derive(Debug, Args)]
struct SettingsArgs {
    /// Types it gets: order.paid, order.*, * (parted by commas; all where not given)
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Option<Vec<String>>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// A header of every request, 'Name: value' (may be repeated; replaces all)
    #[arg(long = "header", value_name = "HEADER", value_parser = HeaderArg::parse)]
    headers: Vec<HeaderArg>,
    /// Signature headers: standard, x-webhook or both
    #[arg(long, value_name = "STYLE", value_parser = ["standard", "x-webhook", "both"],
        hide_possible_values = true)]
    header_style: Option<String>,
    /// Retry policy as JSON, or @file
    #[arg(long, value_name = "JSON", value_parser = DataArg::parse)]
    retry: Option<DataArg>,
    /// Deadline of an attempt, 100ms to 30s
    #[arg(long, value_name = "DURATION", value_parser = span_arg)]
    timeout: Option<Duration>,
    /// Most requests at once, 1 to 256
    #[arg(long, value_name = "N")]
    max_concurrency: Option<u16>,
    /// Retry 4xx answers too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    retry_client_errors: Option<bool>,
    /// Responses to keep: failures, all or none
    #[arg(long, value_name = "WHICH", value_parser = ["failures", "all", "none"], hide_possible_values = true)]
    store_responses: Option<String>,
    /// Your own notes: a JSON object, or @file
    #[arg(long, value_name = "JSON", value_parser = DataArg::parse)]
    metadata: Option<DataArg>,
}

impl SettingsArgs {
    /// As fields of the request; only those that were given.
    fn fields(&self) -> Outcome<Map<String, Value>> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| {
            if !value.is_null() {
                fields.insert(name.to_owned(), value);
            }
        };
        set("eventTypes", json!(self.types));
        set("description", json!(self.description));
        set("headerStyle", json!(self.header_style));
        set("timeoutMs", json!(self.timeout.map(|timeout| timeout.as_millis() as u64)));
        set("maxConcurrency", json!(self.max_concurrency));
        set("retryClientErrors", json!(self.retry_client_errors));
        set("storeResponses", json!(self.store_responses));
        set("retry", self.retry.as_ref().map(|text| json_arg("--retry", text)).transpose()?.into());
        set("metadata", self.metadata.as_ref().map(|text| json_arg("--metadata", text)).transpose()?.into());
        if !self.headers.is_empty() {
            let mut headers = Map::new();
            for header in &self.headers {
                if headers.insert(header.name.clone(), json!(header.value.expose())).is_some() {
                    return Err(Failure::usage(format!("--header gives {} twice", header.name)));
                }
            }
            set("headers", Value::Object(headers));
        }
        Ok(fields)
    }
}

fn json_arg(name: &str, given: &DataArg) -> Outcome<Value> {
    serde_json::from_slice(&given.read()?)
        .map_err(|error| Failure::usage(format!("{name} must be JSON: {error}")))
}

/// Runs it.
pub(crate) async fn run(args: EndpointsArgs, output: Output) -> Outcome {
    let client = Client::new(&args.server)?;
    match args.command {
        EndpointsCommand::List { tenant, status, page } => {
            let mut query = page.query();
            list::filter(&mut query, "tenant", tenant.as_ref());
            list::filter(&mut query, "status", status.as_ref());
            list::print_page(&client, &["endpoints"], &query, &ENDPOINT_COLUMNS, output).await
        }
        EndpointsCommand::Create(new) => create(&client, &new, output).await,
        EndpointsCommand::Show(id) => {
            list::print_one(&client.get(&["endpoints", &id.id], &[]).await?, output)
        }
        EndpointsCommand::Update { id, url, settings } => {
            let mut fields = settings.fields()?;
            fields.extend(url.map(|url| ("url".to_owned(), Value::String(url))));
            if fields.is_empty() {
                return Err(Failure::usage(
                    "nothing to change: give at least one setting, such as --timeout 5s",
                ));
            }
            let body = Value::Object(fields).to_string().into_bytes();
            let answer = client.call(Method::PATCH, &["endpoints", &id.id], &[], Some(body)).await?;
            list::print_one(&answer, output)
        }
        EndpointsCommand::Delete(act) => delete(&client, &act, output).await,
        EndpointsCommand::Pause(act) => act_on(&client, &act, "pause", json!({}), output).await,
        EndpointsCommand::Resume(act) => act_on(&client, &act, "resume", json!({}), output).await,
        EndpointsCommand::Test(id) => test(&client, &id, output).await,
        EndpointsCommand::RotateSecret { act, overlap } => {
            let overlap = overlap.map(|overlap| overlap.as_secs());
            act_on(&client, &act, "rotate-secret", json!({ "overlapSeconds": overlap }), output).await
        }
        EndpointsCommand::Secret(id) => {
            list::print_one(&client.get(&["endpoints", &id.id, "secret"], &[]).await?, output)
        }
    }
}

async fn create(client: &Client, new: &EndpointsCreateArgs, output: Output) -> Outcome {
    let mut fields = new.settings.fields()?;
    let url = new.target.as_ref().or(new.url.as_ref());
    fields.insert("url".to_owned(), json!(url));
    if let Some(tenant) = &new.tenant {
        fields.insert("tenant".to_owned(), json!(tenant));
    }
    if let Some(secret) = &new.secret {
        fields.insert("secret".to_owned(), json!(secret.read()?.expose()));
    }
    let body = Value::Object(fields).to_string().into_bytes();
    let answer = client.post(&["endpoints"], Some(body)).await?;
    list::print_one(&answer, output)?;
    if !output.is_json() {
        note("keep the secret: the receiver verifies with it, and it is not shown again by `show`");
    }
    Ok(())
}

async fn delete(client: &Client, act: &ActArgs, output: Output) -> Outcome {
    let mut query = Vec::new();
    list::filter(&mut query, "reason", act.reason.reason.as_ref());
    let answer = client.call(Method::DELETE, &["endpoints", &act.id.id], &query, None).await?;
    if output.is_json() {
        let nothing = answer.body.is_empty();
        return if nothing { output.json(&json!({"id": act.id.id})) } else { output.bytes(&answer.body) };
    }
    output.line(&format!("{} deleted; what was not settled yet is being cancelled", act.id.id))
}

async fn act_on(client: &Client, act: &ActArgs, verb: &str, mut fields: Value, output: Output) -> Outcome {
    fields["reason"] = json!(act.reason.reason);
    let answer = client.post(&["endpoints", &act.id.id, verb], Some(without_nulls(&fields))).await?;
    list::print_one(&answer, output)
}

/// Shows the attempt, and fails where the receiver did not take it.
async fn test(client: &Client, id: &IdArgs, output: Output) -> Outcome {
    let answer = client.post(&["endpoints", &id.id, "test"], None).await?;
    list::print_one(&answer, output)?;
    let attempt: Value = answer.json()?;
    if field(&attempt, "class") == "success" {
        return Ok(());
    }
    note(&format!("the test failed: {}", field(&attempt, "class")));
    Err(Failure::Told)
}
