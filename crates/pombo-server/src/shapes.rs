//! The JSON of the API, one struct per shape: what the server writes, what its reference is made of, and what
//! a client in Rust may read and write with.
//!
//! Requests are not read into these by the server: it reads field by field, so that one answer names
//! everything that is wrong. A test keeps both lists of fields the same.

mod delivery;
mod endpoint;
mod event;

use std::borrow::Cow;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::{AuditId, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use delivery::{
    Attempt, DeadLetter, Delivery, DeliveryDetail, LastError, Phases, ReasonRequest, Retried, RetryOutcome,
    RetryRequest, Why,
};
pub use endpoint::{
    Deleting, Endpoint, EndpointCreate, EndpointCreated, EndpointPatch, EndpointSettings, OlderSecret,
    RotateSecretRequest, RotatedSecret, Secrets,
};
pub use event::{
    Batch, BatchItem, BatchRequest, Event, EventDetail, ExactBytes, PublishRequest, Published, Unmatched,
};

/// A page of a list, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub data: Vec<T>,
    /// Give it as `after` for the next page; `null` at the end.
    pub next: Option<String>,
}

/// RFC 9457 `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemDocument {
    /// `/errors/<code>`: what kind of problem, for programs.
    #[serde(rename = "type")]
    #[schema(example = "/errors/invalid")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    #[schema(example = 422)]
    pub status: u16,
    /// What is wrong here, and what to do.
    pub detail: String,
    /// Each field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Path of the field, such as `retry.schedule[2]`; empty for the whole document.
    pub field: String,
    /// `unknown_field`, `duplicate`, `required`, `type`, `range`, `too_large`, `read_only`, `unsupported`,
    /// `not_allowed`, `unknown` or `invalid`.
    #[schema(value_type = String)]
    pub code: Cow<'static, str>,
    /// What is wrong; reads alone after the name of the field.
    pub message: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, code: &str, message: impl Into<String>) -> Self {
        Self { field: field.into(), code: Cow::Owned(code.to_owned()), message: message.into() }
    }

    /// Field and message as one sentence.
    pub(crate) fn sentence(&self) -> String {
        let subject = if self.field.is_empty() { "the body" } else { &self.field };
        format!("{subject} {}", self.message)
    }
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Its id.
    #[schema(value_type = String, example = "aud_01h455vb4pex5vsknk084sn02q")]
    pub id: AuditId,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Who: the id of an API key, `dev` or `pombo`.
    pub actor: String,
    /// What, such as `endpoint.pause`.
    pub action: String,
    /// To what: an id.
    pub subject: String,
    /// Its tenant, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "ten_01h455vb4pex5vsknk084sn02q")]
    pub tenant_id: Option<TenantId>,
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether the process can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok` or `ready`.
    #[schema(example = "ok")]
    pub status: String,
}
