//! `pombo listen`: a scripted receiver for people. Shows each request, says whether its signature holds, and
//! answers as told.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http::Method;
use pombo_signature::ProviderSecret;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use url::Url;

use crate::argument::{SecretArg, millis_arg};
use crate::cli::deliveries::without_nulls;
use crate::client::{Client, ServerArgs, field};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, note};

mod answer;
mod received;
mod serve;

use answer::{Forward, Script};

const EXAMPLES: &str = "\
Examples:
  pombo listen --register --types 'order.*'        makes an endpoint for it, and deletes it at the end
  pombo listen --port 9000 --secret @secret.txt --fail-first 2
  pombo listen --register --forward-to http://127.0.0.1:3000/hooks
  pombo listen --port 9000 --status 429 --delay 250 --json";

/// Arguments of `pombo listen`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListenArgs {
    /// Port on 127.0.0.1 (default: any that is free)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Make an endpoint for it at the server, and delete it at the end
    #[arg(long)]
    register: bool,
    /// Whose endpoint (with --register)
    #[arg(long, value_name = "T", requires = "register")]
    tenant: Option<String>,
    /// Types it gets, parted by commas (with --register; all where not given)
    #[arg(long, value_name = "TYPES", value_delimiter = ',', requires = "register")]
    types: Option<Vec<String>>,
    /// Secret to verify with (may be repeated); or @file, env:NAME, - for stdin
    #[arg(long = "secret", value_name = "S", value_parser = SecretArg::parse)]
    secrets: Vec<SecretArg>,
    /// Answer the first N requests with 500
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    fail_first: u64,
    /// Answer with this status (default: 200)
    #[arg(long, value_name = "N", default_value_t = 200, hide_default_value = true,
        value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// Wait before each answer, in milliseconds
    #[arg(long, value_name = "MS", value_parser = millis_arg)]
    delay: Option<Duration>,
    /// Hand each request on to this address, and answer as it does
    #[arg(long, value_name = "URL")]
    forward_to: Option<Url>,
    /// Print the secret of the endpoint that --register made
    #[arg(long)]
    print_secret: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs it.
pub(crate) async fn run(args: ListenArgs, output: Output) -> Outcome {
    let listener = bind(args.port).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    let mut secrets = Vec::new();
    for secret in &args.secrets {
        secrets.push(secret.read()?.expose().to_owned());
    }
    let registration =
        if args.register { Some(Registration::make(&args, address, &secrets).await?) } else { None };
    let end = serve(&args, listener, address, registration.as_ref(), secrets, output).await;
    // The endpoint goes even if serving failed.
    let removed = match registration {
        Some(registration) => registration.remove().await,
        None => Ok(()),
    };
    end.and(removed)
}

async fn bind(port: u16) -> Outcome<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        Failure::Failed(anyhow::anyhow!(
            "cannot listen on 127.0.0.1:{port} ({error}): name another port with --port"
        ))
    })
}

async fn serve(
    args: &ListenArgs,
    listener: TcpListener,
    address: SocketAddr,
    registration: Option<&Registration>,
    mut secrets: Vec<String>,
    output: Output,
) -> Outcome {
    note(&format!("listening on http://{address}"));
    if let Some(registration) = registration {
        note(&format!("registered as {} at {}", registration.id, registration.client.origin()));
        if secrets.is_empty() {
            secrets.extend(registration.secret.clone());
        }
    }
    if args.print_secret {
        print_secret(&secrets, output)?;
    }
    let receiver = serve::Receiver {
        script: Script {
            fail_first: args.fail_first,
            status: args.status,
            delay: args.delay.unwrap_or_default(),
            forward: args.forward_to.clone().map(Forward::to).transpose()?,
        },
        secrets: secrets.into_iter().map(ProviderSecret::new).collect(),
        output,
    };
    tokio::select! {
        failure = serve::serve(listener, Arc::new(receiver)) => Err(failure),
        stopped = interrupted() => stopped,
    }
}

fn print_secret(secrets: &[String], output: Output) -> Outcome {
    let Some(secret) = secrets.first() else {
        return Err(Failure::usage("--print-secret needs --register: there is no secret to print"));
    };
    if output.is_json() {
        output.json(&json!({ "secret": secret }))
    } else {
        output.line(&format!("secret: {secret}"))
    }
}

/// Ctrl-C, a termination, or the terminal's end: all mean "clean up and go".
async fn interrupted() -> Outcome {
    let catch = |kind| signal(kind).context("cannot catch signals");
    let (mut interrupt, mut terminate, mut hangup) =
        (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?, catch(SignalKind::hangup())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// The endpoint made for this receiver.
struct Registration {
    client: Client,
    id: String,
    secret: Option<String>,
}

impl Registration {
    async fn make(args: &ListenArgs, address: SocketAddr, secrets: &[String]) -> Outcome<Self> {
        let client = Client::new(&args.server)?;
        let request = json!({
            "url": format!("http://{address}/"),
            "tenant": args.tenant,
            "eventTypes": args.types,
            "description": "pombo listen",
            "headerStyle": "both",
            "secret": secrets.first(),
        });
        let endpoint: Value = client.post(&["endpoints"], Some(without_nulls(&request))).await?.json()?;
        let secret = Some(field(&endpoint, "secret")).filter(|secret| !secret.is_empty());
        Ok(Self { client, id: field(&endpoint, "id"), secret })
    }

    async fn remove(self) -> Outcome {
        let id = &self.id;
        if let Err(failure) = self.client.call(Method::DELETE, &["endpoints", id], &[], None).await {
            let why = failure.sentence().unwrap_or_default();
            return Err(Failure::failed(format!(
                "{id} was not deleted, so do it later with `pombo endpoints delete {id}`: {why}"
            )));
        }
        note(&format!("{id} deleted"));
        Ok(())
    }
}
