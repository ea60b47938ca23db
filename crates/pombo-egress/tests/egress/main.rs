//! The client against real sockets on loopback.

mod addresses;
mod connections;
mod deadlines;
mod proxy;
mod receiver;
mod responses;
mod tls;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use pombo_domain::attempt::{AttemptClass, Exchange, Outcome, Response};
use pombo_domain::endpoint::EndpointUrl;
use pombo_domain::limits::MESSAGE_BYTES_MAX;
use pombo_egress::{
    AddressPolicy, EgressClient, EgressConfig, OutboundRequest, Resolve, ResolveError, Resolving,
};

/// Bound of every wait; nothing here takes near as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a scripted name answers.
#[derive(Debug, Clone)]
enum Answer {
    Addresses(Vec<&'static str>),
    Failure,
    Silence,
}

/// Gives its answers in order, the last one for ever.
#[derive(Debug)]
struct ScriptedResolver {
    answers: Mutex<VecDeque<Answer>>,
    asked: AtomicUsize,
}

impl ScriptedResolver {
    fn new(answers: impl Into<VecDeque<Answer>>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into()), asked: AtomicUsize::new(0) })
    }

    fn to(addresses: &[&'static str]) -> Arc<Self> {
        Self::new([Answer::Addresses(addresses.to_vec())])
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn next(&self) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().expect("no test panics while it holds the lock");
        let last = answers.len() == 1;
        if last { answers.front().cloned() } else { answers.pop_front() }.expect("a script has an answer")
    }
}

impl Resolve for ScriptedResolver {
    fn resolve<'a>(&'a self, _name: &'a str) -> Resolving<'a> {
        let answer = self.next();
        Box::pin(async move {
            match answer {
                Answer::Addresses(addresses) => Ok(addresses.into_iter().map(address).collect()),
                Answer::Failure => Err(ResolveError::Failed(io::Error::other("no such name"))),
                Answer::Silence => std::future::pending().await,
            }
        })
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn url(text: impl AsRef<str>) -> EndpointUrl {
    EndpointUrl::parse(text.as_ref()).expect("a URL")
}

/// A configuration for loopback that needs no trust store of the machine.
fn config() -> EgressConfig {
    let extra_roots = vec![tls::authority().der()];
    EgressConfig { policy: AddressPolicy::dev(), extra_roots, ..EgressConfig::default() }
}

fn client() -> EgressClient {
    EgressClient::new(config()).expect("a client")
}

/// One POST with a deadline that is never meant to pass.
async fn send(client: &EgressClient, url: &EndpointUrl) -> Exchange {
    send_with(client, url, Bytes::from_static(b"{\"id\":1}"), PATIENCE).await
}

async fn send_within(client: &EgressClient, url: &EndpointUrl, timeout: Duration) -> Exchange {
    send_with(client, url, Bytes::from_static(b"{\"id\":1}"), timeout).await
}

async fn send_with(client: &EgressClient, url: &EndpointUrl, body: Bytes, timeout: Duration) -> Exchange {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    client.send(OutboundRequest { url, headers, body, timeout }).await
}

/// The response of an exchange that has one.
fn response(exchange: &Exchange) -> &Response {
    match &exchange.outcome {
        Outcome::Response(response) => response,
        Outcome::Failure { class, message } => panic!("no response: {} {message}", class.as_str()),
    }
}

/// The message of an exchange that failed in a class. Every message is checked to be fit for a tenant.
fn failure(exchange: &Exchange, expected: AttemptClass) -> &str {
    match &exchange.outcome {
        Outcome::Failure { class, message } => {
            assert_eq!(*class, expected, "{message}");
            assert!(message.len() <= MESSAGE_BYTES_MAX, "{message}");
            for secret in ["127.", "::", "10.0", "169.254", "token", "os error"] {
                assert!(!message.contains(secret), "{message:?} holds {secret:?}");
            }
            message
        }
        Outcome::Response(response) => panic!("a response: {}", response.status),
    }
}

/// Waits for a condition that another task brings about.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
