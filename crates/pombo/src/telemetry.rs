//! The log: on stderr, as text or JSON. It holds ids and numbers, never bodies, secrets or query strings.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat};
use crate::failure::{Failure, Outcome};

/// Quiet about what the libraries below say at `info`, and about statements (sqlx would log their text).
const LIBRARIES: &str = "sqlx=warn,hyper=warn,rustls=warn";

/// Starts the log. Once per process.
pub(crate) fn start(log: &Log) -> Outcome {
    let filter = EnvFilter::try_new(format!("{LIBRARIES},{}", log.level)).map_err(|error| {
        Failure::failed(format!("`log.level` is wrong ({error}): use error, warn, info, debug or trace"))
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match log.format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Text => registry.with(layer.with_ansi(has_color()).with_target(false)).init(),
    }
    Ok(())
}

/// Colour on a terminal, unless NO_COLOR says otherwise (<https://no-color.org>).
fn has_color() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
