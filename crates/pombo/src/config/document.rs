//! The settings as they are written. Units and ranges are checked in [`super`].

use std::path::PathBuf;
use std::time::Duration;

use pombo_domain::retry::RetryDocument;
use pombo_domain::span;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// Everything that may stand in `pombo.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Document {
    /// `127.0.0.1:8080`.
    pub(super) listen: Option<String>,
    /// `sqlite:PATH`, a path ending in .db, or `postgres://…`.
    pub(super) database: Option<String>,
    /// `["api", "relay", "deliver"]`.
    pub(super) roles: Option<Words>,
    /// A file with the master key.
    pub(super) master_key_file: Option<PathBuf>,
    /// `[lease]`.
    pub(super) lease: Lease,
    /// `[delivery]`.
    pub(super) delivery: Delivery,
    /// `[retry]`, as in the API.
    pub(super) retry: Option<RetryDocument>,
    /// `[egress]`.
    pub(super) egress: Egress,
    /// `[log]`.
    pub(super) log: Log,
    /// `[shutdown]`.
    pub(super) shutdown: Shutdown,
    /// `[postgres]`.
    pub(super) postgres: Postgres,
}

/// `[lease]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Lease {
    /// How long a process owns what it took without renewing.
    pub(super) ttl: Option<Span>,
}

/// `[delivery]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Delivery {
    /// Deadline of an attempt.
    pub(super) timeout: Option<Span>,
    /// Attempts in flight at once.
    pub(super) slots: Option<usize>,
    /// `user-agent` of attempts.
    pub(super) user_agent: Option<String>,
}

/// `[egress]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Egress {
    /// Plain HTTP too.
    pub(super) allow_http: bool,
    /// `["10.0.0.0/8:443"]`.
    pub(super) allow: Option<Words>,
    /// The same form.
    pub(super) deny: Option<Words>,
    /// PEM file.
    pub(super) ca_file: Option<PathBuf>,
    /// `["64:ff9b:1::/48"]`.
    pub(super) nat64: Option<Words>,
    /// `http://host:port`.
    pub(super) proxy: Option<String>,
}

/// `[log]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    /// `text` or `json`.
    pub(super) format: Option<String>,
    /// `info`, or directives.
    pub(super) level: Option<String>,
}

/// `[shutdown]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    /// How long a stop waits.
    pub(super) grace: Option<Span>,
}

/// `[postgres]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Postgres {
    /// `session` or `transaction`.
    pub(super) pooling: Option<String>,
}

/// A length of time, `45s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Span;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                span::parse(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(AsText)
    }
}

/// A list, or its items in one text, parted by commas: `["api", "deliver"]` or `"api,deliver"`.
#[derive(Debug, Clone)]
pub(super) struct Words(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsWords;
        impl<'de> Visitor<'de> for AsWords {
            type Value = Words;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list, or words parted by commas")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Words, E> {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                Ok(Words(words.map(str::to_owned).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = items.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }
        deserializer.deserialize_any(AsWords)
    }
}
