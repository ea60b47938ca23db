//! From a name to all its addresses.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// The answer of a [`Resolve`] in the making.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + 'a>>;

/// Finds the addresses of a name. It judges none of them: the address policy does, on the whole answer.
pub trait Resolve: Send + Sync + fmt::Debug + 'static {
    /// All addresses of an ASCII name without a trailing dot, in the order to try them.
    ///
    /// The caller bounds the time and may drop the future.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The resolver answered that there is none, or could not answer.
    #[error("the name could not be resolved")]
    Failed(#[source] io::Error),
    /// The resolver answered with an empty list.
    #[error("the name has no address")]
    Empty,
}

/// Lookups at once. Each holds a thread of the runtime's blocking pool for as long as the system's resolver
/// takes, also when nobody waits for it any more; dead name servers must not take the pool from everyone.
const LOOKUPS_MAX: usize = 128;

/// The system's resolver (`getaddrinfo`).
///
/// Names are made absolute with a trailing dot, so that search lists never apply. `localhost` and names under
/// it are loopback without a question asked (RFC 6761 section 6.3).
#[derive(Debug, Clone)]
pub struct SystemResolver {
    slots: Arc<Semaphore>,
}

impl SystemResolver {
    /// A resolver with its own bound on lookups at once.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if name == "localhost" || name.ends_with(".localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let slots = Arc::clone(&self.slots);
        let slot =
            slots.acquire_owned().await.map_err(|closed| ResolveError::Failed(io::Error::other(closed)))?;
        let absolute = format!("{name}.");
        // A task of its own keeps the slot until the thread is free again, even if this future is dropped.
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host((absolute.as_str(), 0)).await;
            drop(slot);
            found.map(|addresses| addresses.map(|address| address.ip()).collect::<Vec<_>>())
        });
        let addresses = lookup
            .await
            .map_err(|panicked| ResolveError::Failed(io::Error::other(panicked)))?
            .map_err(ResolveError::Failed)?;
        if addresses.is_empty() { Err(ResolveError::Empty) } else { Ok(addresses) }
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(self.lookup(name))
    }
}
