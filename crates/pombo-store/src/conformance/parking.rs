//! Parking and waking (P).

use std::time::Duration;

use pombo_domain::attempt::Settlement;
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::DisabledReason;
use pombo_domain::id::EndpointId;

use super::Database;
use super::scene::{Scene, begin, fresh_uuid, person};
use crate::accept::Placement;
use crate::endpoints::StatusChange;
use crate::parking::{Unclaim, Wake, Woken};
use crate::people::ManualClaim;
use crate::sessions::Release;

const PARKED: Placement = Placement::Parked { not_before: None };

async fn wake(scene: &Scene, endpoint_id: EndpointId, room: u32) -> Woken {
    scene.store.wake(Wake { endpoint_id, room }).await.expect("wakes")
}

/// C1: a claimed row is given back by token, due or parked as asked.
pub async fn a_claimed_row_is_given_back(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let parked = scene.send(&endpoint, Placement::BornClaimed).await;
    let due = scene.send(&endpoint, Placement::BornClaimed).await;
    let later = scene.now().await.plus(Duration::from_secs(60));
    let rows = [
        Unclaim { token: parked.token, due_at: Timestamp::INFINITY, not_before: Some(later) },
        Unclaim { token: due.token, due_at: scene.now().await, not_before: None },
    ];
    assert_eq!(scene.store.unclaim(&rows).await.expect("gives back"), 2);
    assert_eq!(scene.store.unclaim(&rows).await.expect("gives back"), 0, "tokens match once");
    let claimed = scene.claim_one().await;
    assert_eq!((claimed.token.id, claimed.rescues), (due.id, 0));
    assert!(claimed.token.generation > due.token.generation + 1);
    let record = scene.store.delivery(parked.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.due_at, record.not_before), (Some(Timestamp::INFINITY), Some(later)));
}

/// P1: endpoints with parked rows, each once, at most as many as asked for.
pub async fn endpoints_with_parked_rows_are_found(database: &dyn Database) {
    let scene = begin(database).await;
    let mut parked = Vec::new();
    for _ in 0..4 {
        let endpoint = scene.endpoint("acme").await;
        for _ in 0..3 {
            scene.send(&endpoint, PARKED).await;
        }
        parked.push(endpoint.id);
    }
    let idle = scene.endpoint("acme").await;
    scene.send(&idle, Placement::Due).await;
    let mut found = scene.store.parked_endpoints(100).await.expect("lists");
    found.sort_unstable();
    parked.sort_unstable();
    assert_eq!(found, parked);
    assert_eq!(scene.store.parked_endpoints(2).await.expect("lists").len(), 2);
}

/// P1: the oldest of a backlog wake first, no more than there is room for.
pub async fn the_oldest_parked_wake_first(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(scene.send(&endpoint, PARKED).await.id);
    }
    assert_eq!(wake(&scene, endpoint.id, 2).await, Woken { woken: 2, more: true });
    let mut claimed: Vec<_> = scene.claim(10).await.iter().map(|row| row.token.id).collect();
    claimed.sort_by_key(|id| sent.iter().position(|other| other == id));
    assert_eq!(claimed, sent[..2]);
    assert_eq!(wake(&scene, endpoint.id, 2).await, Woken { woken: 1, more: false });
    assert_eq!(wake(&scene, endpoint.id, 2).await, Woken { woken: 0, more: false });
}

/// P1: a parked retry keeps its time when it wakes.
pub async fn a_woken_row_keeps_its_time(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(600));
    let sent = scene.send(&endpoint, Placement::Parked { not_before: Some(later) }).await;
    let due = scene.send(&endpoint, PARKED).await;
    assert_eq!(wake(&scene, endpoint.id, 10).await, Woken { woken: 1, more: false }, "what is due counts");
    assert_eq!(scene.claim_one().await.token.id, due.id);
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.due_at, Some(later));
}

/// P1: nothing wakes while an endpoint is paused, disabled or deleted, or unknown.
pub async fn nothing_wakes_of_an_endpoint_that_is_not_active(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, PARKED).await;
    let store = &scene.store;
    let set =
        async |change| store.set_endpoint_status(endpoint.id, change, &person()).await.expect("changes");
    for change in [StatusChange::Pause, StatusChange::Disable(DisabledReason::Person)] {
        set(change).await;
        assert_eq!(wake(&scene, endpoint.id, 10).await.woken, 0);
    }
    set(StatusChange::Resume).await;
    assert_eq!(wake(&scene, endpoint.id, 10).await.woken, 1);
    scene.send(&endpoint, PARKED).await;
    store.delete_endpoint(endpoint.id, &person()).await.expect("deletes");
    assert_eq!(wake(&scene, endpoint.id, 10).await.woken, 0);
    assert_eq!(wake(&scene, EndpointId(fresh_uuid()), 10).await, Woken::default());
}

/// No room wakes nothing but tells of the backlog.
pub async fn no_room_tells_of_the_backlog(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, PARKED).await;
    assert_eq!(wake(&scene, endpoint.id, 0).await, Woken { woken: 0, more: true });
}

/// Parked rows of an endpoint that is not sent to read as paused.
pub async fn parked_rows_of_a_paused_endpoint_read_as_paused(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, PARKED).await;
    let status = async || scene.store.delivery(sent.id, None).await.expect("reads").expect("is there").status;
    assert_eq!(status().await, DeliveryStatus::Pending);
    scene.store.set_endpoint_status(endpoint.id, StatusChange::Pause, &person()).await.expect("pauses");
    assert_eq!(status().await, DeliveryStatus::Paused);
}

/// M1: a parked row that a person took and a crash gave back is parked again, and wakes like any other.
pub async fn a_parked_row_taken_by_a_person_parks_again(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, PARKED).await;
    let claim = scene.store.claim_manually(sent.id, scene.session, &person()).await.expect("claims");
    let ManualClaim::Claimed(claimed) = claim else { panic!("the row was free") };
    assert_eq!(claimed.not_before, Some(Timestamp::INFINITY));
    scene.store.release(&[claimed.token], Release::Rescue).await.expect("releases");
    assert!(scene.claim(10).await.is_empty());
    assert_eq!(wake(&scene, endpoint.id, 10).await.woken, 1);
    assert_eq!(scene.claim_one().await.token.id, sent.id);
}

/// P3: live rows of a deleted endpoint are cancelled wherever they are, each with one final record.
pub async fn rows_of_a_deleted_endpoint_are_cancelled(database: &dyn Database) {
    let scene = begin(database).await;
    let (gone, kept) = (scene.endpoint("acme").await, scene.endpoint("acme").await);
    let later = scene.now().await.plus(Duration::from_secs(60));
    let mut ids = Vec::new();
    for placement in [Placement::BornClaimed, Placement::Due, Placement::DueAt(later), PARKED] {
        ids.push(scene.send(&gone, placement).await.id);
        scene.send(&kept, placement).await;
    }
    assert_eq!(scene.store.cancel_rows_of(gone.id, 10).await.expect("cancels"), 0, "it is not deleted");
    scene.store.delete_endpoint(gone.id, &person()).await.expect("deletes");
    assert_eq!(scene.store.cancel_rows_of(gone.id, 3).await.expect("cancels"), 3);
    assert_eq!(scene.store.cancel_deleted(10).await.expect("cancels"), 1);
    assert_eq!(scene.store.cancel_deleted(10).await.expect("cancels"), 0);
    for id in ids {
        let record = scene.store.delivery(id, None).await.expect("reads").expect("is there");
        assert_eq!(record.status, DeliveryStatus::Cancelled);
        let attempts = scene.store.attempts(id).await.expect("reads");
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].settles, attempts[0].number), (Some(Settlement::Cancelled), 0));
        assert_eq!((attempts[0].class, attempts[0].manual), (None, false));
        assert_eq!(attempts[0].message.as_deref(), Some("the endpoint was deleted"));
    }
    let report = scene.store.check().await.expect("checks");
    assert_eq!((report.live, report.settled), (4, 4));
    assert_eq!(report.findings, []);
}
