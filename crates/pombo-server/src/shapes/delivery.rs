//! Deliveries, attempts and dead letters as JSON.

use pombo_domain::clock::Timestamp;
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId};
use pombo_domain::name::TenantName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One event on its way to one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// Its id.
    #[schema(value_type = String, example = "dlv_01h455vb4pex5vsknk084sn02q")]
    pub id: DeliveryId,
    /// Its event.
    #[schema(value_type = String, example = "evt_01h455vb4pex5vsknk084sn02q")]
    pub event_id: EventId,
    /// Its endpoint.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub endpoint_id: EndpointId,
    /// Whose.
    #[schema(value_type = String, example = "acme")]
    pub tenant: TenantName,
    /// The event's type.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "order.paid.v1")]
    pub kind: EventType,
    /// `pending` `sending` `retrying` `paused` `delivered` `dead` `cancelled`.
    #[schema(example = "retrying")]
    pub status: String,
    /// Attempts made in this run, manual ones not counted.
    pub attempts: u16,
    /// When it is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_attempt_at: Option<Timestamp>,
    /// Status of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// What was wrong with the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Why it is not being sent right now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the receiver took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub delivered_at: Option<Timestamp>,
}

/// What was wrong with the last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastError {
    /// Its class.
    #[schema(example = "server_error")]
    pub class: String,
    /// Whether a failure like this is tried again.
    pub retryable: bool,
    /// For people.
    pub message: String,
}

/// Why a delivery waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// `due_later` `deliver_at` `retry_after` `lane_full` `in_lane` `circuit_open` `endpoint_paused`
    /// `endpoint_disabled`.
    #[schema(example = "due_later")]
    pub code: String,
    /// Until when, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// The same in a sentence.
    pub text: String,
}

/// A delivery with everything that happened to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryDetail {
    /// The delivery.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// Every attempt, oldest first, at most 1,000.
    pub timeline: Vec<Attempt>,
}

/// One HTTP request and what came of it. A cancellation is an entry with `n` 0 and without `class`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Its number within its run, from 1.
    pub n: i16,
    /// When it started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// From start to end.
    pub duration_ms: u64,
    /// Where the time went.
    pub phases: Phases,
    /// The status that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `success` `redirect` `client_error` `rate_limited` `gone` `server_error` `timeout` `connect` `tls`
    /// `dns` `reset` `too_large` `blocked_address` `interrupted` `body_missing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "success")]
    pub class: Option<String>,
    /// Whether a failure like this is tried again.
    pub retryable: bool,
    /// For people: the failure, the `Location` of a redirect, the reason of a cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What is kept of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_body: Option<String>,
    /// Whether the response was longer than what is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub response_truncated: bool,
    /// Set on the one that settled the delivery: `delivered`, `dead` or `cancelled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settles: Option<String>,
    /// Whether a person asked for it.
    pub manual: bool,
    /// Whether its result came after the delivery had moved on.
    pub late: bool,
    /// The run of the process that made it.
    pub node: String,
}

/// Where the time of an attempt went, in milliseconds; a part that was not reached is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Phases {
    /// Resolution of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_ms: Option<f64>,
    /// TCP connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_ms: Option<f64>,
    /// TLS handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ms: Option<f64>,
    /// From the request's first byte to the head of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<f64>,
    /// From the head of the response to the end of what was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_ms: Option<f64>,
}

/// A person wants a delivery tried now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryRequest {
    /// Why; kept in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub reason: Option<String>,
    /// Also where the endpoint is paused or disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// Why a person does something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReasonRequest {
    /// Why; kept in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub reason: Option<String>,
}

/// What a retry came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryOutcome {
    /// One attempt was made now; see `attempt`.
    Attempted,
    /// The delivery was dead or cancelled and lives again.
    Revived,
}

/// The answer to a retry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Retried {
    /// What it came to.
    pub outcome: RetryOutcome,
    /// The attempt that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The delivery as it stands now.
    pub delivery: Delivery,
}

/// A dead letter: a delivery that used up its attempts or failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The delivery.
    #[schema(value_type = String, example = "dlv_01h455vb4pex5vsknk084sn02q")]
    pub delivery_id: DeliveryId,
    /// Its event.
    #[schema(value_type = String, example = "evt_01h455vb4pex5vsknk084sn02q")]
    pub event_id: EventId,
    /// Its endpoint.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub endpoint_id: EndpointId,
    /// Whose.
    #[schema(value_type = String, example = "acme")]
    pub tenant: TenantName,
    /// The event's type.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "order.paid.v1")]
    pub kind: EventType,
    /// When it died.
    #[schema(value_type = String, format = DateTime)]
    pub died_at: Timestamp,
    /// Class of the last attempt.
    #[schema(example = "client_error")]
    pub class: String,
    /// Whether a failure of this class is tried again by its nature.
    pub retryable: bool,
    /// Status of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}
