//! What Pombo's words mean: tenants, events, endpoints, deliveries, attempts.
//!
//! This crate is pure. It does no I/O and knows no runtime, no database and no HTTP server; time and
//! randomness come in as parameters. Everything that decides something about a delivery (does it match,
//! when is it tried again, is it dead) is a function here, so that the engine only carries verdicts out.
//!
//! It must never open a socket, read a clock or draw a random number by itself.

pub mod attempt;
pub mod clock;
pub mod delivery;
pub mod endpoint;
pub mod event;
pub mod event_type;
pub mod id;
pub mod json;
pub mod limits;
pub mod name;
pub mod retry;
pub mod routing;
pub mod secret;
pub mod span;
