//! The relay (R).

use pombo_domain::clock::Timestamp;
use pombo_domain::event::{BodyParts, Event, JSON_CONTENT_TYPE, Origin, build_body};
use pombo_domain::id::{EndpointId, SessionId, TenantId};
use pombo_domain::name::TenantName;

use super::Database;
use super::scene::{LONG, Scene, begin, deliver_to, first, kind, open_session, tenant};
use crate::accept::{AcceptResult, NewEvent, Placement};
use crate::outbox::{OutboxRow, Rejection, RelayPlan, RelayRequest, Relayed};
use crate::reading::EventFilter;
use crate::sessions::LeaseName;

/// A scene whose session holds the outbox's lease.
struct Relay {
    scene: Scene,
    epoch: i64,
}

async fn relaying(database: &dyn Database) -> Relay {
    let scene = begin(database).await;
    let epoch = hold(&scene, scene.session).await.expect("the lease is free");
    Relay { scene, epoch }
}

async fn hold(scene: &Scene, session: SessionId) -> Option<i64> {
    scene.store.hold_lease(LeaseName::OwnOutbox, session).await.expect("answers")
}

/// An event of a row, as the engine makes it: a pure function of the row (A2).
fn event_from(row: &OutboxRow, to: &[EndpointId]) -> NewEvent {
    let name: TenantName = row.tenant.parse().expect("a tenant name");
    let kind = kind(&row.kind);
    let (id, created_at) = (row.id, row.created_at);
    let body = build_body(BodyParts { id, kind: &kind, created_at, data: &row.data, resource_version: None });
    let event = Event {
        id,
        tenant_id: TenantId::of(&name),
        kind,
        body,
        content_type: JSON_CONTENT_TYPE.to_owned(),
        ordering_key: row.ordering_key.as_ref().map(|key| key.parse().expect("a key")),
        resource_version: None,
        origin: Origin::Outbox,
        created_at,
    };
    let mut new = NewEvent {
        event,
        tenant: name,
        client_key: row.key.as_ref().map(|key| key.parse().expect("a key")),
        content_hash: [row.data.len() as u8; 32],
        deliveries: Vec::new(),
        targets: None,
        deliver_at: row.deliver_at,
    };
    for endpoint in to {
        deliver_to(&mut new, *endpoint, Placement::BornClaimed);
    }
    new
}

fn plan_all(rows: &[OutboxRow], to: &[EndpointId]) -> RelayPlan {
    let events = rows.iter().enumerate().map(|(index, row)| (index, event_from(row, to))).collect();
    RelayPlan { events, rejected: Vec::new() }
}

impl Relay {
    async fn request(&self) -> RelayRequest {
        RelayRequest {
            floor: 0,
            limit: 100,
            bytes_max: 1 << 20,
            session: self.scene.session,
            lease_epoch: self.epoch,
            config_version: self.scene.config_version().await,
        }
    }

    /// Relays everything to these endpoints.
    async fn run(&self, to: &[EndpointId]) -> Relayed {
        let request = self.request().await;
        self.run_with(request, |rows| plan_all(rows, to)).await
    }

    async fn run_with(
        &self,
        request: RelayRequest,
        mut plan: impl FnMut(&[OutboxRow]) -> RelayPlan + Send,
    ) -> Relayed {
        self.scene.store.relay(request, &mut plan).await.expect("relays")
    }
}

fn committed(relayed: Relayed) -> (u32, Vec<AcceptResult>) {
    match relayed {
        Relayed::Committed { taken, results, .. } => (taken, results),
        other => panic!("{other:?}"),
    }
}

async fn write(database: &dyn Database, columns: &str, values: &str) {
    let sql = format!("INSERT INTO {} ({columns}) VALUES ({values})", database.table("outbox"));
    assert_eq!(database.execute(&sql).await, 1);
}

async fn waiting(database: &dyn Database) -> i64 {
    database.number(&format!("SELECT count(*) FROM {}", database.table("outbox"))).await
}

/// A row of three values becomes an event with its deliveries, and is gone.
pub async fn a_row_becomes_an_event(database: &dyn Database) {
    let relay = relaying(database).await;
    let endpoint = relay.scene.endpoint("acme").await;
    let data = r#"{ "n": 12.50, "lone":"\ud800", "nul":"\u0000", "d":1,"d":2 }"#;
    let before = relay.scene.now().await;
    write(database, "tenant, type, data", &format!("'acme', 'order.paid', '{data}'")).await;
    let (taken, results) = committed(relay.run(&[endpoint.id]).await);
    assert_eq!((taken, results), (1, vec![AcceptResult::Created]));
    assert_eq!(waiting(database).await, 0);
    let events = relay.scene.store.events(&EventFilter::default(), first(10)).await.expect("lists").items;
    assert_eq!((events.len(), events[0].fanout, events[0].origin), (1, 1, Origin::Outbox));
    let age = events[0].created_at.since(before.minus(std::time::Duration::from_secs(1)));
    assert!(age.as_secs() < 60, "the default time is now");
    let body = relay.scene.store.event_body(events[0].id, None).await.expect("reads").expect("is there");
    let text = String::from_utf8(body.body.to_vec()).expect("text");
    assert!(text.contains(&format!("\"data\":{data}")), "{text}");
    assert_eq!(relay.scene.store.owned(relay.scene.session).await.expect("reads").len(), 1);
}

/// Ids differ from row to row, and the tenant is `default` where none is named.
pub async fn defaults_make_rows_complete(database: &dyn Database) {
    let relay = relaying(database).await;
    for _ in 0..20 {
        write(database, "type, data", "'order.paid', '0'").await;
    }
    let mut ids = Vec::new();
    let request = relay.request().await;
    let relayed = relay
        .run_with(request, |rows| {
            ids = rows.iter().map(|row| row.id).collect();
            assert!(rows.iter().all(|row| row.tenant == "default"));
            assert!(rows.iter().all(|row| row.id.0.get_version_num() == 4));
            plan_all(rows, &[])
        })
        .await;
    assert_eq!(committed(relayed).0, 20);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}

/// R1: rows come in the order of `seq`, within the bounds asked for.
pub async fn rows_come_in_order_and_within_bounds(database: &dyn Database) {
    let relay = relaying(database).await;
    for n in 0..6 {
        write(database, "type, data", &format!("'order.paid', '{n}{}'", "0".repeat(99))).await;
    }
    let mut seen = Vec::new();
    let mut request = relay.request().await;
    for (limit, bytes_max, taken) in [(2, 1 << 20, 2), (100, 250, 2), (100, 1, 1), (100, 1 << 20, 1)] {
        request.limit = limit;
        request.bytes_max = bytes_max;
        let relayed = relay
            .run_with(request, |rows| {
                seen.extend(rows.iter().map(|row| row.data[0] - b'0'));
                plan_all(rows, &[])
            })
            .await;
        assert_eq!(committed(relayed).0, taken);
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
}

/// R2: an empty outbox is told with a snapshot that grows; the floor hides what lies at or below it.
pub async fn the_floor_hides_rows_and_marks_grow(database: &dyn Database) {
    let relay = relaying(database).await;
    let mark = async |floor| {
        let mut request = relay.request().await;
        request.floor = floor;
        match relay.run_with(request, |_| panic!("nothing is to be planned")).await {
            Relayed::Empty(mark) => mark,
            other => panic!("{other:?}"),
        }
    };
    let empty = mark(0).await;
    write(database, "type, data", "'order.paid', '0'").await;
    // Transactions of other databases on the same server hold the oldest one back until they end.
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    let mut one = mark(i64::MAX).await;
    assert!(one.seq_high > empty.seq_high);
    while one.xmin < empty.xmax {
        assert!(tokio::time::Instant::now() < end, "the oldest transaction of {one:?} never ended");
        one = mark(i64::MAX).await;
    }
    assert!(relay.scene.store.outbox_hint(0).await.expect("answers"));
    assert!(!relay.scene.store.outbox_hint(one.seq_high).await.expect("answers"));
    assert_eq!(committed(relay.run(&[]).await).0, 1);
    assert!(!relay.scene.store.outbox_hint(0).await.expect("answers"));
}

/// R3: without the lease, or with an epoch that is over, nothing is taken.
pub async fn only_the_holder_of_the_lease_relays(database: &dyn Database) {
    let relay = relaying(database).await;
    write(database, "type, data", "'order.paid', '0'").await;
    let other = open_session(&*relay.scene.store, LONG).await;
    let request = relay.request().await;
    for wrong in [
        RelayRequest { session: other, ..request },
        RelayRequest { lease_epoch: request.lease_epoch + 1, ..request },
    ] {
        assert!(matches!(relay.run_with(wrong, |rows| plan_all(rows, &[])).await, Relayed::LeaseLost));
    }
    relay.scene.store.end_session(relay.scene.session).await.expect("ends");
    assert!(matches!(relay.run_with(request, |rows| plan_all(rows, &[])).await, Relayed::LeaseLost));
    let epoch = hold(&relay.scene, other).await.expect("the holder is dead");
    let taken_over = RelayRequest { session: other, lease_epoch: epoch, ..request };
    assert_eq!(committed(relay.run_with(taken_over, |rows| plan_all(rows, &[])).await).0, 1);
}

/// A3: against an older configuration nothing is taken.
pub async fn a_stale_relay_takes_nothing(database: &dyn Database) {
    let relay = relaying(database).await;
    write(database, "type, data", "'order.paid', '0'").await;
    let request = relay.request().await;
    relay.scene.endpoint("acme").await;
    let relayed = relay.run_with(request, |rows| plan_all(rows, &[])).await;
    let Relayed::Stale { config_version } = relayed else { panic!("{relayed:?}") };
    assert_eq!(config_version, relay.scene.config_version().await);
    assert_eq!(waiting(database).await, 1);
}

/// T1: a row that cannot become an event is set aside with the reason and does not block the rest.
pub async fn a_bad_row_is_set_aside(database: &dyn Database) {
    let relay = relaying(database).await;
    for data in ["0", "bad", "1"] {
        write(database, "tenant, type, data", &format!("'acme', 'order.paid', '{data}'")).await;
    }
    let request = relay.request().await;
    let relayed = relay
        .run_with(request, |rows| {
            let mut plan = RelayPlan::default();
            for (index, row) in rows.iter().enumerate() {
                if row.data == "bad" {
                    let detail = "`data` must be JSON".to_owned();
                    plan.rejected.push(Rejection { index, reason: "data", detail });
                } else {
                    plan.events.push((index, event_from(row, &[])));
                }
            }
            plan
        })
        .await;
    let (taken, results) = committed(relayed);
    assert_eq!((taken, results), (3, vec![AcceptResult::Created, AcceptResult::Created]));
    assert_eq!(waiting(database).await, 0);
    let aside = relay.scene.store.rejected_rows(10).await.expect("lists");
    assert_eq!(aside.len(), 1);
    assert_eq!((aside[0].tenant.as_str(), aside[0].kind.as_str()), ("acme", "order.paid"));
    assert_eq!((aside[0].reason.as_str(), aside[0].detail.as_str()), ("data", "`data` must be JSON"));
}

/// A key that is taken: the same content is a repetition, other content is set aside.
pub async fn a_taken_key_is_dropped_or_set_aside(database: &dyn Database) {
    let relay = relaying(database).await;
    for data in ["10", "20", "300"] {
        write(database, "tenant, type, data, key", &format!("'acme', 'order.paid', '{data}', 'k'")).await;
    }
    let (taken, results) = committed(relay.run(&[]).await);
    assert_eq!(taken, 3);
    assert_eq!(results[0], AcceptResult::Created);
    // The content hash of this suite is the length of `data`.
    for (result, same) in results[1..].iter().zip([true, false]) {
        let AcceptResult::Taken(earlier) = result else { panic!("the key was taken") };
        assert_eq!(earlier.same_content, same);
    }
    let aside = relay.scene.store.rejected_rows(10).await.expect("lists");
    assert_eq!(aside.iter().map(|row| row.reason.as_str()).collect::<Vec<_>>(), ["key_conflict"]);
    let events = relay.scene.store.events(&EventFilter::default(), first(10)).await.expect("lists").items;
    assert_eq!(events.len(), 1);
}

/// A2: the same row again is the same event: nothing is sent twice, though its delivery is settled by now.
pub async fn a_row_relayed_twice_is_one_event(database: &dyn Database) {
    let relay = relaying(database).await;
    let endpoint = relay.scene.endpoint("acme").await;
    let at = database.time(Timestamp::from_secs(relay.scene.now().await.as_secs()));
    let id = database.uuid(uuid::Uuid::from_u128(0x1234_5678_1234_4234_8234_1234_5678_9abc));
    let values = format!("{id}, 'acme', 'order.paid', '0', {at}");
    write(database, "id, tenant, type, data, created_at", &values).await;
    assert_eq!(committed(relay.run(&[endpoint.id]).await).1, [AcceptResult::Created]);
    let tokens = relay.scene.store.owned(relay.scene.session).await.expect("reads");
    assert_eq!(tokens.len(), 1);
    relay.scene.store.cancel_delivery(tokens[0].id, &super::scene::person()).await.expect("cancels");

    write(database, "id, tenant, type, data, created_at", &values).await;
    let (taken, _) = committed(relay.run(&[endpoint.id]).await);
    assert_eq!(taken, 1);
    assert_eq!(waiting(database).await, 0);
    assert!(relay.scene.store.owned(relay.scene.session).await.expect("reads").is_empty());
    assert_eq!(relay.scene.store.check().await.expect("checks").findings, []);
}

/// An id that an earlier event has with other content: the row is set aside whole, and holds up nothing.
pub async fn an_id_used_for_another_event_is_set_aside(database: &dyn Database) {
    let relay = relaying(database).await;
    let endpoint = relay.scene.endpoint("acme").await;
    let at = database.time(Timestamp::from_secs(relay.scene.now().await.as_secs()));
    let again = async |id: &str, data: &str| {
        let values = format!("{id}, 'acme', 'order.paid', '{data}', {at}");
        write(database, "id, tenant, type, data, created_at", &values).await;
    };
    let id = database.uuid(uuid::Uuid::from_u128(0x1234_5678_1234_4234_8234_1234_5678_9abc));
    again(&id, "1").await;
    assert_eq!(committed(relay.run(&[endpoint.id]).await).1, [AcceptResult::Created]);
    again(&id, "2").await;
    write(database, "tenant, type, data", "'acme', 'order.paid', '3'").await;
    let (taken, results) = committed(relay.run(&[endpoint.id]).await);
    assert_eq!(taken, 2);
    let AcceptResult::Taken(earlier) = &results[0] else { panic!("the id was taken") };
    assert!(!earlier.same_content);
    assert_eq!(results[1], AcceptResult::Created);
    let aside = relay.scene.store.rejected_rows(10).await.expect("lists");
    assert_eq!(aside.iter().map(|row| row.reason.as_str()).collect::<Vec<_>>(), ["key_conflict"]);
    assert_eq!(relay.scene.store.owned(relay.scene.session).await.expect("reads").len(), 2);
    assert_eq!(relay.scene.store.check().await.expect("checks").findings, []);
}

/// A tenant that a row is the first to name is made.
pub async fn the_tenant_of_a_row_is_made(database: &dyn Database) {
    let relay = relaying(database).await;
    write(database, "tenant, type, data", "'brand-new', 'order.paid', '0'").await;
    relay.run(&[]).await;
    let filter = EventFilter { tenant: Some(TenantId::of(&tenant("brand-new"))), ..EventFilter::default() };
    let events = relay.scene.store.events(&filter, first(10)).await.expect("lists").items;
    assert_eq!(events[0].tenant.as_str(), "brand-new");
}

/// The values of a row come to the planner as they were written.
pub async fn a_row_comes_as_it_was_written(database: &dyn Database) {
    let relay = relaying(database).await;
    let at = Timestamp::from_secs(1_900_000_000);
    let values = format!(
        "'acme', 'order.paid', '0', 'ordkey ☂', 'k''1', 7, {}, 'ep_x', 'text/plain'",
        database.time(at)
    );
    let columns =
        "tenant, type, data, ordering_key, key, resource_version, deliver_at, endpoint_id, content_type";
    write(database, columns, &values).await;
    let mut seen = Vec::new();
    let request = relay.request().await;
    relay
        .run_with(request, |rows| {
            seen = rows.to_vec();
            plan_all(rows, &[])
        })
        .await;
    let row = &seen[0];
    assert_eq!(row.ordering_key.as_deref(), Some("ordkey ☂"));
    assert_eq!((row.key.as_deref(), row.resource_version), (Some("k'1"), Some(7)));
    assert_eq!((row.deliver_at, row.endpoint_id.as_deref()), (Some(at), Some("ep_x")));
    assert_eq!(row.content_type.as_deref(), Some("text/plain"));
    assert!(row.seq > 0);
}
