//! What most cases begin with: an open store, a live session, an endpoint, an accepted event.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use pombo_domain::attempt::{Attempt, AttemptClass, Phases, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::endpoint::{
    Endpoint, EndpointSettings, EndpointUrl, HeaderStyle, StoreResponses, shard_of,
};
use pombo_domain::event::{BodyParts, Event, JSON_CONTENT_TYPE, Origin, build_body};
use pombo_domain::event_type::{EventType, Subscription};
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_domain::name::TenantName;
use pombo_domain::secret::SecretText;

use super::Database;
use crate::Store;
use crate::accept::{AcceptBatch, AcceptResult, Accepted, NewDelivery, NewEvent, Placement};
use crate::admin::Actor;
use crate::claim::{ClaimRequest, Claimed, ClaimedDelivery};
use crate::endpoints::NewEndpoint;
use crate::flush::{Change, FlushBatch, FlushItem, FlushResult};
use crate::page::PageRequest;
use crate::sessions::{NewSession, Roles};

/// A lease that outlives every test.
pub const LONG: Duration = Duration::from_secs(600);

/// The signing secret of every endpoint made here.
pub const SECRET: &str = "whsec_dGhlIHBpZ2VvbiBrbm93cyB0aGUgd2F5";

/// A store in use.
pub struct Scene {
    /// The store.
    pub store: Arc<dyn Store>,
    /// A live session with every role.
    pub session: SessionId,
}

/// An accepted delivery with what is needed to settle it.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Its event.
    pub event: Event,
    /// Its id.
    pub id: DeliveryId,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// The token it was born with, if it was born claimed.
    pub token: Token,
}

/// Opens the database and a session.
pub async fn begin(database: &dyn Database) -> Scene {
    let store = database.open().await;
    let session = open_session(&*store, LONG).await;
    Scene { store, session }
}

/// Opens a session with every role.
pub async fn open_session(store: &dyn Store, ttl: Duration) -> SessionId {
    let roles = Roles { api: true, relay: true, deliver: true };
    let session = NewSession { node: "test".to_owned(), roles, ttl };
    store.open_session(session).await.expect("a session opens").0
}

/// A tenant's name.
pub fn tenant(name: &str) -> TenantName {
    name.parse().expect("a tenant name")
}

/// An event type.
pub fn kind(name: &str) -> EventType {
    name.parse().expect("an event type")
}

/// The first page.
pub fn first(limit: u16) -> PageRequest {
    PageRequest { limit, after: None }
}

/// A person who acts.
pub fn person() -> Actor {
    Actor { name: "key_test".to_owned(), reason: Some("because".to_owned()) }
}

/// Settings of a plain endpoint.
pub fn settings() -> EndpointSettings {
    EndpointSettings {
        url: EndpointUrl::parse("https://example.com/hooks").expect("a URL"),
        description: None,
        subscription: Subscription::All,
        headers: Vec::new(),
        header_style: HeaderStyle::Standard,
        retry: None,
        timeout: None,
        max_concurrency: 8,
        retry_client_errors: false,
        store_responses: StoreResponses::Failures,
        metadata: serde_json::Map::new(),
    }
}

/// An id that no other call in this process gives.
pub fn fresh_uuid() -> Uuid {
    Uuid::new_v4()
}

/// An enveloped event with `data` byte for byte, without deliveries.
pub fn event_of(tenant: &TenantName, kind: &EventType, created_at: Timestamp, data: &[u8]) -> NewEvent {
    let id = EventId(fresh_uuid());
    let body = build_body(BodyParts { id, kind, created_at, data, resource_version: None });
    let event = Event {
        id,
        tenant_id: TenantId::of(tenant),
        kind: kind.clone(),
        body,
        content_type: JSON_CONTENT_TYPE.to_owned(),
        ordering_key: None,
        resource_version: None,
        origin: Origin::Api,
        created_at,
    };
    NewEvent {
        event,
        tenant: tenant.clone(),
        client_key: None,
        content_hash: [0; 32],
        deliveries: Vec::new(),
        targets: None,
        deliver_at: None,
    }
}

/// Adds a delivery to an event.
pub fn deliver_to(new: &mut NewEvent, endpoint_id: EndpointId, placement: Placement) -> DeliveryId {
    let id = DeliveryId::derive(new.event.id, new.event.created_at, endpoint_id);
    new.deliveries.push(NewDelivery { id, endpoint_id, shard: shard_of(endpoint_id), placement });
    id
}

impl Scene {
    /// The database's clock.
    pub async fn now(&self) -> Timestamp {
        self.claim_of(Vec::new(), None, 1).await.now
    }

    /// The version of the configuration.
    pub async fn config_version(&self) -> i64 {
        self.store.catalog_changes(None).await.expect("a catalogue").version
    }

    /// Makes an endpoint of the tenant.
    pub async fn endpoint(&self, tenant_name: &str) -> Endpoint {
        self.endpoint_with(tenant_name, settings()).await
    }

    /// Makes an endpoint with these settings.
    pub async fn endpoint_with(&self, tenant_name: &str, settings: EndpointSettings) -> Endpoint {
        let new = NewEndpoint {
            id: EndpointId(fresh_uuid()),
            tenant: tenant(tenant_name),
            settings,
            secret: SecretText::new(SECRET.to_owned()),
        };
        self.store.create_endpoint(new, &person()).await.expect("an endpoint is made")
    }

    /// Accepts a batch against the newest configuration.
    pub async fn accept(&self, events: Vec<NewEvent>) -> Vec<AcceptResult> {
        let config_version = self.config_version().await;
        let batch = AcceptBatch { events, config_version, session: self.session };
        match self.store.accept(&batch).await.expect("a batch is accepted") {
            Accepted::Committed(results) => results,
            Accepted::Stale { config_version } => panic!("stale at {config_version}"),
        }
    }

    /// Accepts one event of the endpoint's tenant with one delivery.
    pub async fn send(&self, endpoint: &Endpoint, placement: Placement) -> Sent {
        self.send_at(endpoint, placement, self.now().await).await
    }

    /// As [`Scene::send`], with the event's time.
    pub async fn send_at(&self, endpoint: &Endpoint, placement: Placement, at: Timestamp) -> Sent {
        let mut new = event_of(&endpoint.tenant, &kind("order.paid"), at, b"{\"n\":1}");
        let id = deliver_to(&mut new, endpoint.id, placement);
        let event = new.event.clone();
        assert_eq!(self.accept(vec![new]).await, [AcceptResult::Created]);
        Sent { event, id, endpoint: endpoint.id, token: Token { id, owner: self.session, generation: 1 } }
    }

    /// How to settle a delivery of a new event that is to be born claimed.
    pub fn born(&self, new: &NewEvent, id: DeliveryId) -> Sent {
        let delivery =
            new.deliveries.iter().find(|delivery| delivery.id == id).expect("a delivery of the event");
        let token = Token { id, owner: self.session, generation: 1 };
        Sent { event: new.event.clone(), id, endpoint: delivery.endpoint_id, token }
    }

    /// Claims from every shard.
    pub async fn claim(&self, limit: u32) -> Vec<ClaimedDelivery> {
        self.claim_of((0..256).collect(), None, limit).await.deliveries
    }

    /// Claims exactly one row.
    pub async fn claim_one(&self) -> ClaimedDelivery {
        let mut rows = self.claim(10).await;
        assert_eq!(rows.len(), 1, "one row is due");
        rows.remove(0)
    }

    /// Claims.
    pub async fn claim_of(&self, shards: Vec<i16>, floor: Option<Timestamp>, limit: u32) -> Claimed {
        let request = ClaimRequest { session: self.session, shards, floor, limit };
        self.store.claim_due(&request).await.expect("a claim works")
    }

    /// Flushes one result.
    pub async fn flush(&self, item: FlushItem) -> FlushResult {
        let batch = FlushBatch { items: vec![item], ..FlushBatch::default() };
        let results = self.store.flush(&batch).await.expect("a flush works");
        assert_eq!(results.len(), 1);
        results[0]
    }

    /// Settles a delivery that was born claimed: accepted, sent and dead.
    pub async fn dead(&self, endpoint: &Endpoint) -> Sent {
        let sent = self.send(endpoint, Placement::BornClaimed).await;
        let item = self.result(&sent, AttemptClass::ServerError, Change::Settle(Settlement::Dead)).await;
        assert_eq!(self.flush(item).await, FlushResult::Applied);
        sent
    }

    /// Settles a delivery that was born claimed: accepted, sent and delivered.
    pub async fn delivered(&self, endpoint: &Endpoint) -> Sent {
        let sent = self.send(endpoint, Placement::BornClaimed).await;
        let item = self.success(&sent).await;
        assert_eq!(self.flush(item).await, FlushResult::Applied);
        sent
    }

    /// A success under the token that the delivery was born with.
    pub async fn success(&self, sent: &Sent) -> FlushItem {
        self.result(sent, AttemptClass::Success, Change::Settle(Settlement::Delivered)).await
    }

    /// A failure that is tried again at `due_at`.
    pub async fn retry(&self, sent: &Sent, due_at: Timestamp) -> FlushItem {
        let change = Change::Reschedule { due_at, not_before: None, attempts: 1 };
        self.result(sent, AttemptClass::ServerError, change).await
    }

    /// A result under the token that the delivery was born with.
    pub async fn result(&self, sent: &Sent, class: AttemptClass, change: Change) -> FlushItem {
        self.result_under(sent, sent.token, class, change).await
    }

    /// A result under another token.
    pub async fn result_under(
        &self,
        sent: &Sent,
        token: Token,
        class: AttemptClass,
        change: Change,
    ) -> FlushItem {
        let status = match class {
            AttemptClass::Success => Some(204),
            AttemptClass::ServerError => Some(503),
            AttemptClass::Gone => Some(410),
            _ => None,
        };
        let attempt = Attempt {
            delivery_id: sent.id,
            event_id: sent.event.id,
            event_at: sent.event.created_at,
            endpoint_id: sent.endpoint,
            tenant_id: sent.event.tenant_id,
            started_at: self.now().await,
            number: 1,
            generation: token.generation,
            status,
            class: Some(class),
            message: None,
            duration: Duration::from_millis(12),
            phases: Phases { connect: Some(Duration::from_micros(700)), ..Phases::default() },
            response_body: status.filter(|status| *status >= 400).map(|_| Bytes::from_static(b"busy\xff")),
            response_truncated: false,
            settles: None,
            late: false,
            manual: false,
            session: token.owner,
            retryable: class == AttemptClass::ServerError,
        };
        let created_at = sent.event.created_at;
        FlushItem { token, attempt, kind: sent.event.kind.clone(), delivery_created_at: created_at, change }
    }
}
