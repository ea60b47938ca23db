//! Endpoints as JSON.

use std::collections::BTreeMap;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::EndpointId;
use pombo_domain::name::TenantName;
use pombo_domain::retry::RetryDocument;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An endpoint to be made.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCreate {
    /// Whose; `default` where it is left out. A tenant that is new is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_.:@-]{1,128}$", example = "acme")]
    pub tenant: Option<String>,
    /// Where to.
    #[schema(example = "https://example.com/hooks")]
    pub url: String,
    /// A signing secret of your own; made where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    pub secret: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub settings: EndpointSettings,
}

/// A change of an endpoint. A field left out stays as it is; `null` sets it back to its default.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPatch {
    /// Where to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://example.com/hooks")]
    pub url: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub settings: EndpointSettings,
}

/// What can be set on an endpoint beside its URL.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSettings {
    /// What it is for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub description: Option<String>,
    /// Patterns of the event types it gets: a type, a prefix ending in `.*`, or `*`. Left out: every type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 100, example = json!(["order.*"]))]
    pub event_types: Option<Vec<String>>,
    /// Headers of every attempt, at most 20. Their values are shown as `***`; giving `***` back keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// How attempts are signed: `v1`, HMAC-SHA256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "v1")]
    pub signature: Option<String>,
    /// Which signature headers: `standard` (the default), `x-webhook` or `both`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "standard")]
    pub header_style: Option<String>,
    /// When attempts are made: `{"schedule": ["0s","30s"], "jitter"?}` or `{"exponential": {"base","factor",
    /// "cap","attempts"}, "jitter"?}`; jitter is `"none"`, `"full"`, `"equal"` or `{"percent": 20}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"schedule": ["0s", "30s", "2m"]}))]
    pub retry: Option<RetryDocument>,
    /// Deadline of one attempt, from DNS to the last byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100, maximum = 30_000)]
    pub timeout_ms: Option<u32>,
    /// Most attempts in flight at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 256)]
    pub max_concurrency: Option<u16>,
    /// Retry 4xx answers too (not 410).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_client_errors: Option<bool>,
    /// Of which attempts the response is kept: `failures` (the default), `all` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "failures")]
    pub store_responses: Option<String>,
    /// Your own notes, at most 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its id.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub id: EndpointId,
    /// Whose.
    #[schema(value_type = String, example = "acme")]
    pub tenant: TenantName,
    /// Where to.
    pub url: String,
    /// `active`, `paused` or `disabled`.
    #[schema(example = "active")]
    pub status: String,
    /// Why it is disabled: `gone` or `person`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Patterns of the event types it gets; left out: every type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_types: Option<Vec<String>>,
    /// Headers of every attempt; the values are hidden.
    pub headers: BTreeMap<String, String>,
    /// How attempts are signed.
    #[schema(example = "v1")]
    pub signature: String,
    /// Which signature headers.
    #[schema(example = "standard")]
    pub header_style: String,
    /// Its own retry policy; left out: the installation's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub retry: Option<RetryDocument>,
    /// Its own deadline; left out: the installation's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Most attempts in flight at once.
    pub max_concurrency: u16,
    /// Whether 4xx answers are retried.
    pub retry_client_errors: bool,
    /// Of which attempts the response is kept.
    #[schema(example = "failures")]
    pub store_responses: String,
    /// The caller's own notes.
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// A new endpoint, with its secret: shown here once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCreated {
    /// The endpoint.
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// The signing secret. Keep it; later it is shown only by an audited call.
    #[schema(example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    pub secret: String,
}

/// An endpoint that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleting {
    /// Its id.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub id: EndpointId,
    /// `deleting`: nothing is sent to it any more; its live deliveries are being cancelled.
    #[schema(example = "deleting")]
    pub status: String,
}

/// How a secret is rotated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotateSecretRequest {
    /// How long the old secret signs too, 86400 where it is left out; 0 ends it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 2_592_000)]
    pub overlap_seconds: Option<u32>,
    /// Why; kept in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub reason: Option<String>,
}

/// A new secret.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotatedSecret {
    /// The endpoint.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub id: EndpointId,
    /// The new secret, which signs from now on.
    pub secret: String,
    /// How long the old one signs too.
    pub overlap_seconds: u32,
}

/// The secrets of an endpoint.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secrets {
    /// The current one.
    pub secret: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Older ones that still sign.
    pub previous: Vec<OlderSecret>,
}

/// A secret that was rotated away and still signs.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OlderSecret {
    /// The secret.
    pub secret: String,
    /// Until when it signs.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
