//! The receiver: a customer's service that checks every signature and counts.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pombo_signature::{HeaderList, Signer, SigningSecret, WebhookRequest, standard, x_webhook};
use tokio::net::TcpListener;

use crate::failure::{Failure, Outcome};

/// How the receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// 200.
    Healthy,
    /// 200 after [`SLOW`].
    Slow,
    /// 503.
    Failing,
}

/// How long a slow receiver thinks: enough that a burst is still under way when Pombo is killed.
const SLOW: Duration = Duration::from_millis(30);

#[derive(Default)]
struct State {
    is_failing: AtomicBool,
    is_slow: AtomicBool,
    signer: Mutex<Option<Signer>>,
    received: Mutex<HashMap<String, u32>>,
    verified: AtomicU64,
    bad: AtomicU64,
    refused: AtomicU64,
    open: AtomicU64,
}

/// The receiver.
pub(super) struct Receiver {
    state: Arc<State>,
    url: String,
}

/// How what was received compares with what was committed.
pub(super) struct Counts {
    pub(super) lost: u32,
    pub(super) unexpected: u32,
    pub(super) duplicates: u32,
}

impl Receiver {
    /// Listens on a free loopback port.
    pub(super) async fn start() -> Outcome<Self> {
        let bind = async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            std::io::Result::Ok((listener, address))
        };
        let (listener, address) =
            bind.await.context("the receiver cannot listen").map_err(Failure::Failed)?;
        let state = Arc::new(State::default());
        tokio::spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { state, url: format!("http://{address}/hooks") })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The secret that Pombo showed once, when the endpoint was made.
    pub(super) fn learn_secret(&self, secret: &str) -> Outcome {
        let secret = SigningSecret::parse(secret).map_err(anyhow::Error::new)?;
        *self.state.signer.lock().expect("nobody panics with the lock") = Some(Signer::new(&secret));
        Ok(())
    }

    pub(super) fn set_mood(&self, mood: Mood) {
        self.state.is_failing.store(mood == Mood::Failing, Ordering::Relaxed);
        self.state.is_slow.store(mood == Mood::Slow, Ordering::Relaxed);
    }

    /// Requests answered 503.
    pub(super) fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::Relaxed)
    }

    pub(super) fn verified(&self) -> u64 {
        self.state.verified.load(Ordering::Relaxed)
    }

    pub(super) fn bad_signatures(&self) -> u64 {
        self.state.bad.load(Ordering::Relaxed)
    }

    /// Whether no connection is open, and so no request is being read.
    pub(super) fn is_quiet(&self) -> bool {
        self.state.open.load(Ordering::Acquire) == 0
    }

    /// Copies taken, repetitions included.
    pub(super) fn copies(&self) -> u32 {
        self.state.received.lock().expect("nobody panics with the lock").values().sum()
    }

    /// Different orders whose event was taken.
    pub(super) fn distinct(&self) -> u32 {
        self.state.received.lock().expect("nobody panics with the lock").len() as u32
    }

    pub(super) fn compare(&self, committed: &[String]) -> Counts {
        let received = self.state.received.lock().expect("nobody panics with the lock");
        let lost = committed.iter().filter(|order| !received.contains_key(*order)).count() as u32;
        let found = committed.len() as u32 - lost;
        Counts {
            lost,
            unexpected: received.len() as u32 - found,
            duplicates: received.values().map(|copies| copies - 1).sum(),
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        state.open.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&state), request));
            // A connection that breaks (Pombo is killed in this story) is its own end.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            state.open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let status = match body.collect().await {
        Err(_) => StatusCode::BAD_REQUEST,
        Ok(_) if state.is_failing.load(Ordering::Relaxed) => {
            state.refused.fetch_add(1, Ordering::Relaxed);
            StatusCode::SERVICE_UNAVAILABLE
        }
        Ok(body) => {
            let status = take(&state, &head.headers, &body.to_bytes());
            if state.is_slow.load(Ordering::Relaxed) {
                tokio::time::sleep(SLOW).await;
            }
            status
        }
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    Ok(response)
}

/// What a good receiver does: verify over the raw bytes, then look inside.
fn take(state: &State, headers: &hyper::HeaderMap, body: &[u8]) -> StatusCode {
    let signer = state.signer.lock().expect("nobody panics with the lock").clone();
    let Some(signer) = signer else { return StatusCode::UNAUTHORIZED };
    let list: HeaderList<'_> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64);
    let request = WebhookRequest::new(list, body, now_ms);
    let both =
        standard::verify(&[&signer], &request).is_ok() && x_webhook::verify(&[&signer], &request).is_ok();
    let order = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|event| event["data"]["orderId"].as_str().map(str::to_owned));
    let Some(order) = order.filter(|_| both) else {
        state.bad.fetch_add(1, Ordering::Relaxed);
        return StatusCode::UNAUTHORIZED;
    };
    state.verified.fetch_add(1, Ordering::Relaxed);
    *state.received.lock().expect("nobody panics with the lock").entry(order).or_default() += 1;
    StatusCode::OK
}
