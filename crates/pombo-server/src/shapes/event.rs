//! Events as JSON.

use pombo_domain::clock::Timestamp;
use pombo_domain::event_type::EventType;
use pombo_domain::id::{EndpointId, EventId};
use pombo_domain::name::{ClientKey, OrderingKey, TenantName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Delivery, ProblemDocument};

/// An event to be published. Exactly one of `data`, `payload` and `payloadBase64`.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishRequest {
    /// Whose endpoints get it; `default` where it is left out. A tenant that is new is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_.:@-]{1,128}$", example = "acme")]
    pub tenant: Option<String>,
    /// What happened.
    #[serde(rename = "type")]
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,128}$", example = "order.paid.v1")]
    pub kind: String,
    /// Any JSON, kept byte for byte and sent as `data` of
    /// `{"id","type","createdAt","data"[,"resourceVersion"]}`. At most 1 MiB, nested at most 128 deep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Box<RawValue>>,
    /// Text sent exactly as given, instead of the document around `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Bytes (standard base64 with padding) sent exactly as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Content type of `payload` or `payloadBase64`; needed with them, refused without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "text/plain; charset=utf-8")]
    pub content_type: Option<String>,
    /// Your own id of the event, unique per tenant for 7 days: the same id and content answers 200 with the
    /// first answer, other content 409. The header `Idempotency-Key` is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub id: Option<String>,
    /// Only these endpoints, whatever their `eventTypes` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 100, example = json!(["ep_01h455vb4pex5vsknk084sn02q"]))]
    pub endpoints: Option<Vec<String>>,
    /// What orders it: kept for ordered endpoints, which come with a later release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub ordering_key: Option<String>,
    /// Your counter, by which receivers drop what is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub resource_version: Option<i64>,
    /// Not before this time, at most 30 days ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub deliver_at: Option<String>,
}

/// An accepted event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Its id, the `webhook-id` of every attempt.
    #[schema(value_type = String, example = "evt_01h455vb4pex5vsknk084sn02q")]
    pub id: EventId,
    /// Your own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_id: Option<ClientKey>,
    /// What happened.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "order.paid.v1")]
    pub kind: EventType,
    /// Whose.
    #[schema(value_type = String, example = "acme")]
    pub tenant: TenantName,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// To how many endpoints it goes.
    pub deliveries: u32,
}

/// Several events.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct BatchRequest {
    /// Up to a thousand. One bad event harms no other.
    #[schema(min_items = 1, max_items = 1000)]
    pub events: Vec<PublishRequest>,
}

/// The answers to several events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Batch {
    /// One per event, in order.
    pub data: Vec<BatchItem>,
}

/// What became of one event of a batch: `status` and the event, or `status` and the problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BatchItem {
    /// Accepted (202), or accepted before with the same content (200).
    Accepted {
        /// 202 or 200.
        status: u16,
        /// The event.
        #[serde(flatten)]
        event: Published,
    },
    /// Not accepted.
    Refused {
        /// As the call for one event would have answered.
        status: u16,
        /// Why.
        problem: ProblemDocument,
    },
}

/// An event without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its id.
    #[schema(value_type = String, example = "evt_01h455vb4pex5vsknk084sn02q")]
    pub id: EventId,
    /// The caller's own id, while it is remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_id: Option<ClientKey>,
    /// What happened.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "order.paid.v1")]
    pub kind: EventType,
    /// Whose.
    #[schema(value_type = String, example = "acme")]
    pub tenant: TenantName,
    /// Where it came from: `api`, `outbox` or `pombo`.
    pub origin: String,
    /// Content type of the body.
    pub content_type: String,
    /// Length of the body in bytes.
    pub body_bytes: i64,
    /// What orders it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ordering_key: Option<OrderingKey>,
    /// The caller's counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<i64>,
    /// The endpoints it named, if it named any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub endpoints: Option<Vec<EndpointId>>,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// To how many endpoints it went.
    pub delivery_count: u32,
}

/// An event with its deliveries, and the endpoints that did not get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventDetail {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Its deliveries, at most 250.
    pub deliveries: Vec<Delivery>,
    /// The cursor of `GET /v1/deliveries?event=…` behind the last one shown; `null` where all are.
    pub deliveries_next: Option<String>,
    /// Endpoints of the tenant that did not get it, at most 250.
    pub unmatched: Vec<Unmatched>,
}

/// An endpoint that did not get an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unmatched {
    /// Which.
    #[schema(value_type = String, example = "ep_01h455vb4pex5vsknk084sn02q")]
    pub endpoint_id: EndpointId,
    /// `event_type`, `not_targeted`, `created_later` or `changed_later`.
    pub code: String,
    /// The same in a sentence.
    pub text: String,
}

/// The exact bytes of an event's body.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct ExactBytes(pub Vec<u8>);
