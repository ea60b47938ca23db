//! The walk: from an accepted event to a settled delivery.
//!
//! One module per stage: [`accept`](EngineHandle::publish) and relay bring events in, claim and lanes choose
//! what is sent, deliver sends it, flush writes what came of it, sweep heals what a dead process left. The
//! rules they keep are numbered in `docs/protocol.md`.
//!
//! The engine decides nothing about a delivery itself (that is `pombo-domain`), writes no SQL (that is a
//! store) and opens no socket (that is `pombo-egress`).

mod accept;
mod answer;
mod catalog;
mod claim;
mod clock;
mod config;
mod deliver;
mod flush;
mod handle;
mod holdings;
mod homes;
mod lanes;
mod metrics;
mod people;
mod plan;
mod random;
mod relay;
mod returns;
mod session;
mod spine;
mod sweep;
mod tally;

pub use config::{ConfigError, EngineConfig};
pub use handle::{
    ActError, Engine, EngineError, EngineHandle, EngineParts, PublishError, Published, Readiness, Retried,
    SECRET_RANDOM_BYTES,
};
