//! The way out: the only code that opens sockets which a tenant or a remote message can steer.
//!
//! Its place in the walk is one step: the engine hands over an [`OutboundRequest`], and [`EgressClient::send`]
//! gives back how it ended. Between the two it resolves the name, judges every address by the
//! [`AddressPolicy`], connects to a judged address and no other, agrees on TLS, sends the request once and
//! reads a bounded part of the answer, all inside one deadline.
//!
//! It must never follow a redirect, use a proxy from the environment, connect to an address that was not
//! judged, send a request twice, decompress, read without a bound, or put an address, a query string or a
//! secret into a message.

mod address_policy;
mod client;
mod connector;
mod nat64;
mod outcome;
mod pool;
mod proxy;
mod resolve;
mod tls;

pub use address_policy::{AddressPolicy, NetPort, NetPortError, Refusal, UrlRefusal};
pub use client::{EgressClient, EgressConfig, EgressError, OutboundRequest};
pub use connector::PhaseLimits;
pub use nat64::{Nat64Prefix, discover_nat64};
pub use pool::PoolLimits;
pub use proxy::{EgressProxy, ProxyError};
pub use resolve::{Resolve, ResolveError, Resolving, SystemResolver};
