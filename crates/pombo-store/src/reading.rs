//! Reading events, deliveries and dead letters (docs/protocol.md T8).

use async_trait::async_trait;

use pombo_domain::attempt::{Attempt, AttemptClass};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::event::{Origin, ResourceVersion};
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, TenantId};
use pombo_domain::name::{ClientKey, OrderingKey, TenantName};

use crate::claim::EventBody;
use crate::error::Result;
use crate::page::{Page, PageRequest};

/// An event without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Its id.
    pub id: EventId,
    /// Whose.
    pub tenant_id: TenantId,
    /// The tenant's name.
    pub tenant: TenantName,
    /// Its type.
    pub kind: EventType,
    /// Content type of its body.
    pub content_type: String,
    /// Length of its body in bytes.
    pub body_bytes: i64,
    /// The caller's own id, while it is remembered.
    pub client_key: Option<ClientKey>,
    /// What orders it.
    pub ordering_key: Option<OrderingKey>,
    /// The caller's counter.
    pub resource_version: Option<ResourceVersion>,
    /// Where it came from.
    pub origin: Origin,
    /// How many deliveries it had.
    pub fanout: i32,
    /// The endpoints it named, if it named any.
    pub targets: Option<Vec<EndpointId>>,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// What a list of events is narrowed by.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only this type.
    pub kind: Option<EventType>,
    /// Created at or after.
    pub since: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
    /// Only events that had no delivery: nobody subscribed, or a pattern is misspelt.
    pub unmatched: bool,
}

/// A delivery, live or settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// Its id.
    pub id: DeliveryId,
    /// Its event.
    pub event_id: EventId,
    /// The event's `created_at`.
    pub event_at: Timestamp,
    /// Its endpoint.
    pub endpoint_id: EndpointId,
    /// Whose.
    pub tenant_id: TenantId,
    /// The tenant's name.
    pub tenant: TenantName,
    /// The event's type.
    pub kind: EventType,
    /// Where it stands. Parked rows of an active endpoint (a full lane) read by their attempts, `pending` or
    /// `retrying`; parked rows of a paused or disabled one `paused`.
    pub status: DeliveryStatus,
    /// Attempts recorded in this run, manual ones not counted; for settled ones the number of the last.
    pub attempts: u16,
    /// When it is due, of a waiting live row; [`Timestamp::INFINITY`] of a parked one.
    pub due_at: Option<Timestamp>,
    /// The time a parked row waits for.
    pub not_before: Option<Timestamp>,
    /// The endpoint's hold, where one lies ahead.
    pub hold_until: Option<Timestamp>,
    /// Status of the last attempt.
    pub last_status: Option<u16>,
    /// Class of the last attempt.
    pub last_class: Option<AttemptClass>,
    /// Message of the last attempt.
    pub last_message: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was settled.
    pub settled_at: Option<Timestamp>,
}

/// What a list of deliveries is narrowed by.
#[derive(Debug, Clone, Default)]
pub struct DeliveryFilter {
    /// Only with this status.
    pub status: Option<DeliveryStatus>,
    /// Only of this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Only of this tenant.
    pub tenant: Option<TenantId>,
    /// Only of this event (id and `created_at`).
    pub event: Option<(EventId, Timestamp)>,
    /// Only of this event type.
    pub kind: Option<EventType>,
    /// Event created at or after.
    pub since: Option<Timestamp>,
    /// Event created before.
    pub until: Option<Timestamp>,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// Its event.
    pub event_id: EventId,
    /// Its endpoint.
    pub endpoint_id: EndpointId,
    /// Whose.
    pub tenant_id: TenantId,
    /// The tenant's name.
    pub tenant: TenantName,
    /// The event's type.
    pub kind: EventType,
    /// When it died.
    pub died_at: Timestamp,
    /// Class of the last attempt.
    pub class: AttemptClass,
    /// Status of the last attempt.
    pub status: Option<u16>,
}

/// What a list of dead letters is narrowed by.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Only of this tenant.
    pub tenant: Option<TenantId>,
    /// Only of this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Only of this event type.
    pub kind: Option<EventType>,
    /// Died at or after.
    pub since: Option<Timestamp>,
    /// Died before.
    pub until: Option<Timestamp>,
}

/// Reading. Every `tenant` narrows: what belongs to another tenant does not exist.
#[async_trait]
pub trait Reading {
    /// One event.
    async fn event(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventRecord>>;

    /// The exact bytes of one event.
    async fn event_body(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventBody>>;

    /// Events, newest first, by (created_at, id).
    async fn events(&self, filter: &EventFilter, page: PageRequest) -> Result<Page<EventRecord>>;

    /// One delivery, live or settled. A delivery that was revived reads as live; one that settled twice reads as its last.
    async fn delivery(&self, id: DeliveryId, tenant: Option<TenantId>) -> Result<Option<DeliveryRecord>>;

    /// Its attempts, oldest first, at most 1,000.
    async fn attempts(&self, id: DeliveryId) -> Result<Vec<Attempt>>;

    /// Deliveries, newest first, by id (which leads with the event's time): hot and history in one snapshot.
    async fn deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> Result<Page<DeliveryRecord>>;

    /// Dead letters, newest first, by (died_at, delivery_id).
    async fn dead_letters(&self, filter: &DeadFilter, page: PageRequest) -> Result<Page<DeadLetter>>;
}
