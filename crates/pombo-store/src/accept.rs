//! Accepting events: the transaction after which an event is never lost (docs/protocol.md, rules A).

use async_trait::async_trait;

use pombo_domain::clock::Timestamp;
use pombo_domain::event::Event;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId};
use pombo_domain::name::{ClientKey, TenantName};

use crate::error::Result;

/// How a new delivery starts its life (A5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Owned by the accepting session, already in its lane's room.
    BornClaimed,
    /// For anyone, at once.
    Due,
    /// For anyone, from this instant (`deliverAt`, or an endpoint on hold).
    DueAt(Timestamp),
    /// Parked behind the endpoint's backlog; `not_before` keeps a `deliverAt`.
    Parked {
        /// The time the row waits for, if any.
        not_before: Option<Timestamp>,
    },
}

/// A delivery to be inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDelivery {
    /// Derived from event and endpoint ([`DeliveryId::derive`]).
    pub id: DeliveryId,
    /// Where to.
    pub endpoint_id: EndpointId,
    /// [`pombo_domain::endpoint::shard_of`] the endpoint.
    pub shard: i16,
    /// How it starts.
    pub placement: Placement,
}

/// An event with everything that is inserted with it.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The event; `event.id` is new (API) or the row's (outbox).
    pub event: Event,
    /// The tenant's name; the tenant is created where it is new.
    pub tenant: TenantName,
    /// The caller's own id, if any.
    pub client_key: Option<ClientKey>,
    /// SHA-256 over everything the caller gave, so that the same key with other content is a conflict.
    pub content_hash: [u8; 32],
    /// Its deliveries, one per endpoint; `fanout` is their number.
    pub deliveries: Vec<NewDelivery>,
    /// Ids of endpoints the event named, kept so that "why not this endpoint" can be answered.
    pub targets: Option<Vec<EndpointId>>,
    /// Not before this instant.
    pub deliver_at: Option<Timestamp>,
}

/// A batch to be accepted in one transaction.
#[derive(Debug, Clone)]
pub struct AcceptBatch {
    /// The events, in accepted order: `seq` of their deliveries follows it.
    pub events: Vec<NewEvent>,
    /// The version of the configuration they were matched against (A3).
    pub config_version: i64,
    /// The session that owns what is born claimed.
    pub session: SessionId,
}

/// What an earlier event with the same client key was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierEvent {
    /// Its id.
    pub id: EventId,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// How many deliveries it had.
    pub fanout: i32,
    /// Whether its content was the same.
    pub same_content: bool,
}

/// What became of one event of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptResult {
    /// Inserted with its deliveries.
    Created,
    /// The key is taken by an earlier event; nothing was inserted.
    Taken(EarlierEvent),
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// The configuration has moved on: nothing was inserted. Load the changes, match again (A3).
    Stale {
        /// The version it is at now.
        config_version: i64,
    },
    /// Committed, with fsync. One result per event, in order.
    Committed(Vec<AcceptResult>),
}

/// Accepting through the API.
#[async_trait]
pub trait Accept {
    /// Inserts tenants that are new, keys (in sorted order, A4), events and deliveries, in one transaction
    /// committed synchronously, only while `config.version` is the batch's (A3). Two events of one batch with
    /// the same tenant and key: the first wins, the second is `Taken`.
    ///
    /// # Errors
    /// [`crate::StoreError::OutcomeUnknown`]: register the born-claimed ids before calling, audit after (S6).
    async fn accept(&self, batch: &AcceptBatch) -> Result<Accepted>;
}
