//! Settings: `pombo.toml`, then `POMBO_SECTION__KEY`, then what was typed; the later wins. An unknown key is an
//! error that names the nearest known one.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use pombo_domain::limits;
use pombo_domain::retry::RetryPolicy;
use pombo_egress::{EgressProxy, Nat64Prefix, NetPort};
use pombo_store::sessions::Roles;

use crate::failure::{Failure, Outcome};

mod complaint;
mod document;

use complaint::Complaint;
use document::{Document, Words};

/// The file, in the directory where the program was started.
pub(crate) const FILE: &str = "pombo.toml";
/// How long a stop waits for attempts in flight: longer than the longest deadline of one (S8).
const GRACE_DEFAULT: Duration = Duration::from_secs(35);
/// Longest lease: a process that dies keeps its deliveries waiting for so long.
const LEASE_MAX: Duration = Duration::from_secs(600);
/// Variables that begin with POMBO_ and are no settings of the server.
const NO_SETTINGS: [&str; 7] =
    ["database", "server", "api_key", "master_key", "config", "service_host", "port"];

/// Every setting, checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where the server listens; several where a name has several addresses.
    pub(crate) listen: Listen,
    /// `database` of the file alone; see [`crate::database`].
    pub(crate) database: Option<String>,
    /// What this process does.
    pub(crate) roles: Roles,
    /// Lease of a session.
    pub(crate) lease_ttl: Duration,
    /// Deadline of an attempt where the endpoint has none.
    pub(crate) timeout: Duration,
    /// Attempts in flight at once.
    pub(crate) slots: usize,
    /// `user-agent` of attempts.
    pub(crate) user_agent: String,
    /// Retry policy where the endpoint has none.
    pub(crate) retry: RetryPolicy,
    /// Where attempts may go.
    pub(crate) egress: Egress,
    /// What is logged and how.
    pub(crate) log: Log,
    /// How long a stop waits for attempts in flight.
    pub(crate) grace: Duration,
    /// A file with the master key.
    pub(crate) master_key_file: Option<PathBuf>,
    /// A pooler in transaction mode stands before PostgreSQL.
    pub(crate) is_pooled: bool,
}

/// An address to listen on.
#[derive(Debug, Clone)]
pub(crate) struct Listen {
    /// As it was written.
    pub(crate) text: String,
    /// What it means.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Listen {
    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
    }
}

/// Where attempts may go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Egress {
    /// Plain HTTP too.
    pub(crate) allow_http: bool,
    /// Targets allowed although they are not public.
    pub(crate) allow: Vec<NetPort>,
    /// Targets refused although they are public.
    pub(crate) deny: Vec<NetPort>,
    /// PEM file of authorities trusted beside the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// Prefixes under which this network reaches IPv4; looked for where there is none.
    pub(crate) nat64: Vec<Nat64Prefix>,
    /// All attempts go through this proxy's CONNECT.
    pub(crate) proxy: Option<EgressProxy>,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What is logged and how.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// The form.
    pub(crate) format: LogFormat,
    /// `info`, or directives such as `info,pombo_engine=debug`.
    pub(crate) level: String,
}

/// What was typed; it wins over file and environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Typed {
    /// `--config`.
    pub(crate) file: Option<PathBuf>,
    /// `--listen`.
    pub(crate) listen: Option<String>,
    /// `--roles`.
    pub(crate) roles: Option<String>,
}

impl Settings {
    /// Reads file, environment and flags, and checks everything.
    pub(crate) fn load(typed: &Typed) -> Outcome<Self> {
        let figment = layers(typed)?;
        let document: Document = figment.extract().map_err(|error| complaint::about(&error))?;
        checked(document).map_err(|complaint| complaint.with_source(&figment))
    }
}

fn layers(typed: &Typed) -> Outcome<Figment> {
    let file = typed.file.as_deref().unwrap_or_else(|| Path::new(FILE));
    if typed.file.is_some() && !file.is_file() {
        return Err(Failure::failed(format!("there is no file {}", file.display())));
    }
    let mut figment = Figment::new();
    if file.exists() {
        // Read here for the sake of the message.
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        figment = figment.merge(Toml::file_exact(file));
    }
    figment = figment.merge(environment());
    if let Some(listen) = &typed.listen {
        figment = figment.merge(("listen", listen));
    }
    if let Some(roles) = &typed.roles {
        figment = figment.merge(("roles", roles));
    }
    Ok(figment)
}

/// `POMBO_LEASE__TTL` is `lease.ttl`. Kubernetes gives every container variables about services; one that is named
/// `pombo` yields `POMBO_SERVICE_HOST`, `POMBO_PORT_8080_TCP` and so on, which are nobody's mistake.
fn environment() -> Env {
    Env::prefixed("POMBO_")
        .filter(|key| {
            let key = key.as_str().to_ascii_lowercase();
            let is_kubernetes = key.starts_with("service_port") || key.starts_with("port_");
            // This project's own tests are told by POMBO_TEST_… where things are.
            let is_of_tests = key.starts_with("test_");
            !is_kubernetes && !is_of_tests && !NO_SETTINGS.contains(&key.as_str())
        })
        .split("__")
}

fn checked(document: Document) -> Result<Settings, Complaint> {
    let Document { listen, database, roles, lease, delivery, retry, egress, log, shutdown, postgres, .. } =
        document;
    let user_agent = delivery.user_agent.unwrap_or_else(|| format!("Pombo/{}", env!("CARGO_PKG_VERSION")));
    if http::HeaderValue::from_str(&user_agent).is_err() || user_agent.is_empty() || !user_agent.is_ascii() {
        return Err(Complaint::new("delivery.user_agent", "must be visible ASCII"));
    }
    let retry = retry.map(RetryPolicy::try_from).transpose();
    let lease_ttl = lease.ttl.map_or(limits::LEASE_TTL_DEFAULT, |span| span.0);
    if lease_ttl > LEASE_MAX {
        return Err(Complaint::new("lease.ttl", "must be at most 10m"));
    }
    Ok(Settings {
        listen: listen_on(listen.as_deref().unwrap_or("127.0.0.1:8080"))?,
        database,
        roles: roles_from(roles)?,
        lease_ttl,
        timeout: delivery.timeout.map_or(limits::TIMEOUT_DEFAULT, |span| span.0),
        slots: delivery.slots.unwrap_or(512),
        user_agent,
        retry: retry.map_err(|error| Complaint::new("retry", error.to_string()))?.unwrap_or_default(),
        egress: Egress {
            allow_http: egress.allow_http,
            allow: networks("egress.allow", egress.allow)?,
            deny: networks("egress.deny", egress.deny)?,
            ca_file: egress.ca_file,
            nat64: nat64_prefixes(egress.nat64)?,
            proxy: proxy(egress.proxy.as_deref())?,
        },
        log: Log {
            format: log_format(log.format.as_deref())?,
            level: log.level.unwrap_or_else(|| "info".into()),
        },
        grace: shutdown.grace.map_or(GRACE_DEFAULT, |span| span.0),
        master_key_file: document.master_key_file,
        is_pooled: pooling(postgres.pooling.as_deref())?,
    })
}

fn listen_on(text: &str) -> Result<Listen, Complaint> {
    // Host names are for the operator's own listening address: `localhost:8080`.
    let addresses: Vec<SocketAddr> = text.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if addresses.is_empty() {
        return Err(Complaint::new(
            "listen",
            format!("must be an address and a port such as 127.0.0.1:8080, not {text:?}"),
        ));
    }
    Ok(Listen { text: text.to_owned(), addresses })
}

fn roles_from(words: Option<Words>) -> Result<Roles, Complaint> {
    let Some(Words(words)) = words else { return Ok(Roles { api: true, relay: true, deliver: true }) };
    let mut roles = Roles::default();
    for word in &words {
        match word.as_str() {
            "api" => roles.api = true,
            "relay" => roles.relay = true,
            "deliver" => roles.deliver = true,
            other => {
                return Err(Complaint::new(
                    "roles",
                    format!("must be some of api, relay, deliver, not {other:?}"),
                ));
            }
        }
    }
    if roles == Roles::default() {
        return Err(Complaint::new("roles", "must name at least one of api, relay, deliver"));
    }
    Ok(roles)
}

fn networks(setting: &'static str, words: Option<Words>) -> Result<Vec<NetPort>, Complaint> {
    let words = words.map(|words| words.0).unwrap_or_default();
    words
        .iter()
        .map(|word| word.parse().map_err(|error| Complaint::new(setting, format!("is wrong: {error}"))))
        .collect()
}

fn nat64_prefixes(words: Option<Words>) -> Result<Vec<Nat64Prefix>, Complaint> {
    let words = words.map(|words| words.0).unwrap_or_default();
    let prefix = |word: &String| {
        let (address, length) = word.split_once('/')?;
        Nat64Prefix::new(address.parse().ok()?, length.parse().ok()?)
    };
    let wrong = |word: &String| {
        let text = format!("must hold prefixes such as 64:ff9b:1::/48 of 32 to 96 bits, not {word:?}");
        Complaint::new("egress.nat64", text)
    };
    words.iter().map(|word| prefix(word).ok_or_else(|| wrong(word))).collect()
}

fn proxy(text: Option<&str>) -> Result<Option<EgressProxy>, Complaint> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error| Complaint::new("egress.proxy", format!("is wrong: {error}")))
}

fn log_format(word: Option<&str>) -> Result<LogFormat, Complaint> {
    match word {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(other) => Err(Complaint::new("log.format", format!("must be text or json, not {other:?}"))),
    }
}

fn pooling(word: Option<&str>) -> Result<bool, Complaint> {
    match word {
        None | Some("session") => Ok(false),
        Some("transaction") => Ok(true),
        Some(other) => {
            Err(Complaint::new("postgres.pooling", format!("must be session or transaction, not {other:?}")))
        }
    }
}

#[cfg(test)]
mod tests;
