//! The HTTP API.
//!
//! It stands at both ends of the walk: `POST /v1/events` hands an event to the engine and answers after the
//! commit, and everything else looks at what became of it or changes where events go. [`router`] makes the
//! routes, [`serve`] is the accept loop with its own timers and bounds, [`openapi`] the reference, [`shapes`]
//! the JSON.
//!
//! It must never answer 202 before the commit, send anything by itself, show what is inside an error, or take a
//! tenant from a parameter where the credential says another.

mod api;
mod auth;
mod extract;
mod fields;
mod listener;
mod openapi;
mod page;
mod problem;
mod query;
pub mod shapes;
mod state;

pub use api::{health_router, router};
pub use auth::bootstrap;
pub use listener::{ServeLimits, Served, serve};
pub use openapi::openapi;
pub use state::{AppState, ServerConfig};
