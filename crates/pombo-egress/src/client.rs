//! One request out, one [`Exchange`] back.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use pombo_domain::attempt::{AttemptClass, Exchange, Outcome, Response};
use pombo_domain::endpoint::EndpointUrl;
use pombo_domain::limits::RESPONSE_BYTES_MAX;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::{Instant, timeout, timeout_at};
use url::Position;

use crate::address_policy::{AddressPolicy, path_of};
use crate::connector::{Connector, PhaseLimits, TlsConfig};
use crate::outcome::{self, Failure, Progress, Stage};
use crate::pool::{Connection, Pool, PoolLimits};
use crate::proxy::EgressProxy;
use crate::resolve::{Resolve, SystemResolver};
use crate::tls;

/// Longest `Location` that is kept, in bytes of the text.
const LOCATION_BYTES_MAX: usize = 2048;
/// Longest `Retry-After` that is kept; no valid value comes near it.
const RETRY_AFTER_BYTES_MAX: usize = 128;
/// How long a connection may take to finish an exchange after its answer came before its request had gone out
/// in full.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How a client behaves. The default is the strict one.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// Where requests may go.
    pub policy: AddressPolicy,
    /// Certificates of authorities trusted beside the system's store.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Who resolves names.
    pub resolver: Arc<dyn Resolve>,
    /// Limits of the parts of connecting.
    pub phases: PhaseLimits,
    /// Bounds of the connections kept open.
    pub pool: PoolLimits,
    /// A proxy that every connection goes through; those of the environment are never used.
    pub proxy: Option<EgressProxy>,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self {
            policy: AddressPolicy::default(),
            extra_roots: Vec::new(),
            resolver: Arc::new(SystemResolver::new()),
            phases: PhaseLimits::default(),
            pool: PoolLimits::default(),
            proxy: None,
        }
    }
}

impl EgressConfig {
    /// Trusts the certificates of a PEM file too. Gives how many were added.
    ///
    /// # Errors
    /// [`EgressError::Pem`] if the text is not PEM or holds no certificate.
    pub fn add_roots_pem(&mut self, pem: &[u8]) -> Result<usize, EgressError> {
        let added: Vec<_> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| EgressError::Pem)?;
        if added.is_empty() {
            return Err(EgressError::Pem);
        }
        let count = added.len();
        self.extra_roots.extend(added);
        Ok(count)
    }
}

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// No certificates to trust, or an extra root that is not one.
    #[error(
        "no usable root certificates: install the system's CA certificates (the package is often called \
         ca-certificates) or give your own"
    )]
    Roots(#[source] rustls::Error),
    /// Not PEM certificates.
    #[error("the extra root certificates are not PEM (-----BEGIN CERTIFICATE-----)")]
    Pem,
}

/// One POST to an endpoint.
#[derive(Debug)]
pub struct OutboundRequest<'a> {
    /// Where to.
    pub url: &'a EndpointUrl,
    /// All headers but those of the connection and the framing, which are set here and replaced if given.
    pub headers: HeaderMap,
    /// The exact bytes of the body.
    pub body: Bytes,
    /// The total deadline, from DNS to the last byte of the response.
    pub timeout: Duration,
}

/// Sends requests. Clones share one pool of connections.
#[derive(Debug, Clone)]
pub struct EgressClient {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
}

impl EgressClient {
    /// Makes a client; opens nothing.
    ///
    /// # Errors
    /// [`EgressError::Roots`] if there is no certificate to trust.
    pub fn new(config: EgressConfig) -> Result<Self, EgressError> {
        let EgressConfig { policy, extra_roots, resolver, phases, pool, proxy } = config;
        let tls = TlsConfig(Arc::new(tls::client_config(extra_roots).map_err(EgressError::Roots)?));
        let connector = Connector { policy, resolver, limits: phases, tls, proxy };
        Ok(Self { connector: Arc::new(connector), pool: Arc::new(Pool::new(pool)) })
    }

    /// The policy it was made with, for the check of URLs at creation.
    pub fn policy(&self) -> &AddressPolicy {
        &self.connector.policy
    }

    /// How many idle connections are open: for the gauge.
    pub fn idle_connections(&self) -> usize {
        self.pool.ready()
    }

    /// Sends the request at most once and says how it ended; every end is an [`Outcome`].
    ///
    /// Once the head of a response has arrived its status decides, whether the body ends, breaks or goes over
    /// the cap. Only the total deadline passing while the body still comes is a `timeout`: the receiver never
    /// finished its answer.
    ///
    /// A kept connection may turn out to be closed. If the request had not begun to go out, another
    /// connection is used; if it had, the receiver may have got it, and the end is `reset`.
    ///
    /// Cancel safe in this sense: dropping the future closes the socket. What the receiver had got by then
    /// cannot be known.
    pub async fn send(&self, request: OutboundRequest<'_>) -> Exchange {
        let started = Instant::now();
        let limit = request.timeout;
        let mut progress = Progress::default();
        let end = match timeout_at(started + limit, self.exchange(request, &mut progress)).await {
            Ok(end) => end,
            Err(_) => Err(progress.deadline_passed(limit)),
        };
        let now = Instant::now();
        Exchange {
            outcome: end.map_or_else(Failure::into_outcome, Outcome::Response),
            phases: progress.finish(now),
            duration: now - started,
        }
    }

    async fn exchange(
        &self,
        request: OutboundRequest<'_>,
        progress: &mut Progress,
    ) -> Result<Response, Failure> {
        let url = request.url;
        // Checked again at every attempt: the installation's rules may have changed since the URL was stored.
        self.connector.policy.check_target(url).map_err(|refusal| outcome::of_refused_url(&refusal))?;
        let mut message = build_message(request)?;
        // The pool holds a bounded number of connections and each round takes one out, so the loop ends.
        loop {
            let kept = self.pool.take(origin_of(url));
            let is_reused = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connector.connect(url, progress).await?,
            };
            progress.enter(Stage::Answer);
            match connection.sender.try_send_request(message).await {
                Ok(response) => {
                    progress.enter(Stage::Body);
                    return Ok(self.read_response(response, url, connection).await);
                }
                // hyper gives the message back only if it never began to write it.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if is_reused => {
                        progress.start_over();
                        message = unsent;
                    }
                    _ => return Err(outcome::of_exchange(error.error(), is_reused)),
                },
            }
        }
    }

    async fn read_response(
        &self,
        response: http::Response<Incoming>,
        url: &EndpointUrl,
        connection: Connection,
    ) -> Response {
        let (head, body) = response.into_parts();
        let BodyRead { kept, truncated, has_ended } = read_body(body).await;
        if has_ended {
            self.keep(url, connection);
        }
        Response {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            location: head.status.is_redirection().then(|| location(&head.headers)).flatten(),
            body: kept,
            truncated,
        }
    }

    /// Gives a connection back. One that is still writing the request (the answer came early) is waited for
    /// a while on the side: closing it now could take the rest of the body from the receiver.
    fn keep(&self, url: &EndpointUrl, mut connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        if connection.sender.is_ready() {
            return self.pool.keep(origin_of(url), connection);
        }
        let pool = Arc::clone(&self.pool);
        let origin = origin_of(url).to_owned();
        tokio::spawn(async move {
            if matches!(timeout(SETTLE_MAX, connection.sender.ready()).await, Ok(Ok(()))) {
                pool.keep(&origin, connection);
            }
        });
    }
}

/// Scheme, host and port, borrowed from the URL.
fn origin_of(url: &EndpointUrl) -> &str {
    &url.url()[..Position::AfterPort]
}

fn build_message(request: OutboundRequest<'_>) -> Result<Request<Full<Bytes>>, Failure> {
    let url = request.url.url();
    // Neither fails for a URL that passed `check_url` when it was stored; were it to, nothing is sent.
    let unsendable = || Failure::new(AttemptClass::BlockedAddress, "the URL of the endpoint cannot be sent");
    let target = Uri::try_from(path_of(url)).map_err(|_| unsendable())?;
    let host = &url[Position::BeforeHost..Position::AfterPort];
    let host = HeaderValue::from_str(host).map_err(|_| unsendable())?;
    let mut headers = request.headers;
    // What frames the message belongs to the connection. Custom headers are checked where they are made; this
    // is the last door.
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::TE, header::UPGRADE, header::EXPECT] {
        headers.remove(name);
    }
    headers.insert(header::HOST, host);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(request.body.len()));
    let mut message = Request::new(Full::new(request.body));
    *message.method_mut() = Method::POST;
    *message.uri_mut() = target;
    *message.headers_mut() = headers;
    Ok(message)
}

struct BodyRead {
    kept: Bytes,
    truncated: bool,
    /// The whole body came, so the connection can carry another request.
    has_ended: bool,
}

/// Reads at most the cap. The bytes are copied out: a slice would hold on to the connection's read buffer for
/// as long as the attempt waits to be written.
async fn read_body(mut body: Incoming) -> BodyRead {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // A body that breaks off was longer than what came.
        let Ok(frame) = frame else {
            return BodyRead { kept: kept.freeze(), truncated: true, has_ended: false };
        };
        let Some(data) = frame.data_ref() else { continue };
        let room = RESPONSE_BYTES_MAX - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return BodyRead { kept: kept.freeze(), truncated: true, has_ended: false };
        }
    }
    BodyRead { kept: kept.freeze(), truncated: false, has_ended: true }
}

fn retry_after(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::RETRY_AFTER)?.as_bytes();
    (value.len() <= RETRY_AFTER_BYTES_MAX).then(|| value.to_vec())
}

fn location(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::LOCATION)?.as_bytes();
    let mut text = String::from_utf8_lossy(value).into_owned();
    text.truncate(text.floor_char_boundary(LOCATION_BYTES_MAX));
    Some(text)
}
