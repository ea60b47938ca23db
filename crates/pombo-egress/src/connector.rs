//! From a URL to an open connection whose peer was judged.
//!
//! The order is the protection: resolve, judge **every** address, connect to a judged `SocketAddr`, compare
//! the peer, and only then say anything. IP literals go the same way, without a resolver. There is no second
//! path to a socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use pombo_domain::attempt::AttemptClass;
use pombo_domain::endpoint::EndpointUrl;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::Host;

use crate::address_policy::{AddressPolicy, Refusal, port_of};
use crate::outcome::{self, Failure, Progress, Stage, seconds};
use crate::pool::{AbortOnDrop, Connection};
use crate::proxy::EgressProxy;
use crate::resolve::{Resolve, ResolveError};
use crate::tls;

/// The longest that each part of connecting may take, inside the total deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseLimits {
    /// Resolution of the name.
    pub dns: Duration,
    /// TCP connection, over all addresses that are tried.
    pub connect: Duration,
    /// TLS handshake.
    pub tls: Duration,
}

impl Default for PhaseLimits {
    fn default() -> Self {
        Self { dns: Duration::from_secs(2), connect: Duration::from_secs(3), tls: Duration::from_secs(5) }
    }
}

/// Addresses of one name that are tried; all are judged.
const ADDRESSES_TRIED_MAX: usize = 4;
/// Headers of a response.
const HEAD_HEADERS_MAX: usize = 64;
/// Bytes of a response's head, and of the read buffer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Opens connections.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) policy: AddressPolicy,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) limits: PhaseLimits,
    pub(crate) tls: TlsConfig,
    pub(crate) proxy: Option<EgressProxy>,
}

/// The TLS configuration; its `Debug` would print every root certificate.
#[derive(Clone)]
pub(crate) struct TlsConfig(pub(crate) Arc<rustls::ClientConfig>);

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConfig")
    }
}

impl Connector {
    /// Opens a connection for the URL. Dropping the future closes what it opened so far.
    pub(crate) async fn connect(
        &self,
        url: &EndpointUrl,
        progress: &mut Progress,
    ) -> Result<Connection, Failure> {
        let Some(host) = url.url().host() else { return Err(outcome::blocked()) };
        let addresses = self.resolve(&host, port_of(url.url()), progress).await?;
        progress.enter(Stage::Connect);
        let stream = self.connect_first(&addresses).await?;
        if !url.is_https() {
            return speak(stream).await;
        }
        progress.enter(Stage::Tls);
        let name = tls::server_name(&host)
            .ok_or_else(|| Failure::new(AttemptClass::Tls, "no certificate can be for this host name"))?;
        let handshake = TlsConnector::from(Arc::clone(&self.tls.0)).connect(name, stream);
        match timeout(self.limits.tls, handshake).await {
            Ok(Ok(stream)) => speak(stream).await,
            Ok(Err(error)) => Err(outcome::of_handshake(&error)),
            Err(_) => Err(over_limit("the TLS handshake did not end", self.limits.tls)),
        }
    }

    /// The judged addresses of the host, in the order to try them. One refused address refuses them all:
    /// whoever mixes an internal address into an answer is not to be given a second guess.
    async fn resolve(
        &self,
        host: &Host<&str>,
        port: u16,
        progress: &mut Progress,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let found = match host {
            Host::Ipv4(address) => vec![IpAddr::V4(*address)],
            Host::Ipv6(address) => vec![IpAddr::V6(*address)],
            Host::Domain(name) => {
                progress.enter(Stage::Resolve);
                match timeout(self.limits.dns, self.resolver.resolve(name)).await {
                    Ok(Ok(found)) => found,
                    Ok(Err(error)) => {
                        tracing::debug!(host = %name, error = &error as &dyn std::error::Error, "A name did not resolve");
                        return Err(unresolved(&error));
                    }
                    Err(_) => return Err(over_limit("the name did not resolve", self.limits.dns)),
                }
            }
        };
        if found.is_empty() {
            return Err(unresolved(&ResolveError::Empty));
        }
        let judged = found.into_iter().map(|address| self.policy.check_address(address, port));
        judged.collect::<Result<_, Refusal>>().map_err(|refusal| {
            // For the operator; the tenant learns only that a rule refused it.
            tracing::info!(%host, port, "A target is refused by the address policy: it {refusal}");
            outcome::blocked()
        })
    }

    /// Tries the addresses in order. The time is shared out evenly over those still to come, so that one
    /// that never answers (a broken IPv6 route) leaves time for the next.
    async fn connect_first(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
        let deadline = Instant::now() + self.limits.connect;
        let tried = &addresses[..addresses.len().min(ADDRESSES_TRIED_MAX)];
        let mut last = None;
        for (index, address) in tried.iter().enumerate() {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / (tried.len() - index) as u32;
            match timeout_at(now + share, self.open(*address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(failure)) => last = Some(failure),
                Err(_) => last = Some(over_limit("no TCP connection", self.limits.connect)),
            }
        }
        Err(last.unwrap_or_else(|| unresolved(&ResolveError::Empty)))
    }

    async fn open(&self, judged: SocketAddr) -> Result<TcpStream, Failure> {
        if let Some(proxy) = &self.proxy {
            return proxy.open(judged).await;
        }
        let stream = TcpStream::connect(judged).await.map_err(|error| outcome::of_connect(&error))?;
        self.verify_peer(stream, judged)
    }

    /// Looks at where the connection really ended before a byte is sent.
    fn verify_peer(&self, stream: TcpStream, judged: SocketAddr) -> Result<TcpStream, Failure> {
        let ends = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
        let (peer, local) = ends.map_err(|error| outcome::of_connect(&error))?;
        if !is_judged_peer(&self.policy, judged, peer, local) {
            tracing::warn!("A connection did not end at the address that was judged, or at this host itself");
            return Err(outcome::blocked());
        }
        set_nodelay(&stream);
        Ok(stream)
    }
}

/// Whether the peer is the judged address, and not this host under one of its public addresses, where
/// services that trust the machine listen.
fn is_judged_peer(policy: &AddressPolicy, judged: SocketAddr, peer: SocketAddr, local: SocketAddr) -> bool {
    // Not the whole `SocketAddr`: the kernel may fill in flow label and scope of IPv6.
    let is_same = peer.ip() == judged.ip() && peer.port() == judged.port();
    let is_self = peer.ip() == local.ip();
    is_same && (!is_self || policy.allows_this_host(peer))
}

/// A request is one small write; waiting to fill a segment only delays it. Where this fails, it is slower.
pub(crate) fn set_nodelay(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = &error as &dyn std::error::Error, "TCP_NODELAY could not be set");
    }
}

/// Starts HTTP/1.1 on a stream and lets a task of its own drive it.
async fn speak<T>(stream: T) -> Result<Connection, Failure>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_headers(HEAD_HEADERS_MAX).max_header_size(HEAD_BYTES_MAX).max_buf_size(HEAD_BYTES_MAX);
    // A malformed header line must not lose the status that stands above it. Lines that frame the message are
    // not saved by this: without them the body ends with the connection, which is then not used again.
    builder.ignore_invalid_headers_in_responses(true);
    let (sender, connection): (SendRequest<Full<Bytes>>, _) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| outcome::of_exchange(&error, false))?;
    // Its end is seen through `sender`, which fails or closes; the error itself reaches the exchange in flight.
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::trace!(error = &error as &dyn std::error::Error, "A connection ended with an error");
        }
    });
    Ok(Connection { sender, opened_at: Instant::now(), _task: AbortOnDrop(task.abort_handle()) })
}

fn unresolved(error: &ResolveError) -> Failure {
    let message = match error {
        ResolveError::Failed(source) if source.kind() == io::ErrorKind::TimedOut => {
            "the name servers did not answer"
        }
        ResolveError::Failed(_) => "the host name could not be resolved",
        ResolveError::Empty => "the host name has no address",
    };
    Failure::new(AttemptClass::Dns, message)
}

fn over_limit(what: &str, limit: Duration) -> Failure {
    Failure::new(AttemptClass::Timeout, format!("{what} within {}", seconds(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("a socket address")
    }

    #[test]
    fn a_peer_that_is_not_the_judged_one_is_refused() {
        let policy = AddressPolicy::dev();
        let local = at("192.168.0.2:50000");
        assert!(is_judged_peer(&policy, at("8.8.8.8:443"), at("8.8.8.8:443"), local));
        assert!(!is_judged_peer(&policy, at("8.8.8.8:443"), at("8.8.4.4:443"), local));
        assert!(!is_judged_peer(&policy, at("8.8.8.8:443"), at("8.8.8.8:80"), local));
    }

    #[test]
    fn this_host_under_a_public_address_is_refused_unless_a_rule_allows_it() {
        let (own, local) = (at("8.8.8.8:443"), at("8.8.8.8:50000"));
        assert!(!is_judged_peer(&AddressPolicy::default(), own, own, local));
        assert!(is_judged_peer(&AddressPolicy::dev(), own, own, local));
        let allow = vec!["8.8.8.8:443".parse().expect("a rule")];
        assert!(is_judged_peer(&AddressPolicy { allow, ..Default::default() }, own, own, local));
    }
}
