//! Sessions and leases (S).

use std::time::Duration;

use pombo_domain::clock::Timestamp;

use super::Database;
use super::scene::{LONG, Scene, begin, open_session};
use crate::Store;
use crate::accept::Placement;
use crate::sessions::{LeaseName, NewSession, Release, Renewal, Roles};

/// Long enough for a statement, short enough to wait for.
const TINY: Duration = Duration::from_millis(20);

/// Buries what has expired until the session is among it.
async fn bury(store: &dyn Store, session: pombo_domain::id::SessionId) {
    let buried = async {
        while !store.bury_expired_sessions().await.expect("buries").contains(&session) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), buried).await.expect("the lease runs out");
}

/// S1: ids are never used twice, not even after the database was opened again.
pub async fn a_session_id_is_never_used_twice(database: &dyn Database) {
    let scene = begin(database).await;
    let second = open_session(&*scene.store, LONG).await;
    assert_ne!(scene.session, second);
    scene.store.end_session(second).await.expect("ends");
    let store = database.reopen(scene.store).await;
    let third = open_session(&*store, LONG).await;
    assert!(![scene.session, second].contains(&third));
}

/// C3: deliverers are live, not draining, with the role; in order of id.
pub async fn deliverers_are_live_and_deliver(database: &dyn Database) {
    let scene = begin(database).await;
    let roles = Roles { api: true, relay: true, deliver: false };
    let other = NewSession { node: "api".to_owned(), roles, ttl: LONG };
    let (api, _) = scene.store.open_session(other).await.expect("opens");
    let draining = open_session(&*scene.store, LONG).await;
    let ended = open_session(&*scene.store, LONG).await;
    let last = open_session(&*scene.store, LONG).await;
    scene.store.drain_session(draining).await.expect("drains");
    scene.store.end_session(ended).await.expect("ends");
    let Renewal::Renewed(beat) = scene.store.renew_session(api, LONG).await.expect("renews") else {
        panic!("the session is live");
    };
    assert_eq!(beat.deliverers, [scene.session, last]);
    assert_eq!(beat.config_version, scene.config_version().await);
}

/// S5: the epoch stays the same while the database lives.
pub async fn the_epoch_stays_while_the_database_lives(database: &dyn Database) {
    let scene = begin(database).await;
    let roles = Roles::default();
    let session = NewSession { node: "n".to_owned(), roles, ttl: LONG };
    let (id, first) = scene.store.open_session(session).await.expect("opens");
    let Renewal::Renewed(second) = scene.store.renew_session(id, LONG).await.expect("renews") else {
        panic!("the session is live");
    };
    assert_eq!(first.epoch, second.epoch);
    assert!(second.now > first.now);
}

/// S2: a lease that ran out is not renewed, whether buried or not.
pub async fn an_expired_session_is_not_renewed(database: &dyn Database) {
    let scene = begin(database).await;
    let short = open_session(&*scene.store, TINY).await;
    let lost = async {
        loop {
            // Nothing renews by looking: a zero lease has expired when it is looked at next.
            if matches!(
                scene.store.renew_session(short, Duration::ZERO).await.expect("answers"),
                Renewal::Lost
            ) {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), lost).await.expect("the lease runs out");
    assert!(matches!(scene.store.renew_session(short, LONG).await.expect("answers"), Renewal::Lost));
    bury(&*scene.store, short).await;
    assert!(matches!(scene.store.renew_session(short, LONG).await.expect("answers"), Renewal::Lost));
}

/// S3: burying takes what has expired and nothing else, each once.
pub async fn only_expired_sessions_are_buried(database: &dyn Database) {
    let scene = begin(database).await;
    let short = open_session(&*scene.store, TINY).await;
    bury(&*scene.store, short).await;
    assert!(scene.store.bury_expired_sessions().await.expect("buries").is_empty());
    let renewed = scene.store.renew_session(scene.session, LONG).await.expect("answers");
    assert!(matches!(renewed, Renewal::Renewed(_)));
}

/// S1: a session that ended stays ended.
pub async fn an_ended_session_stays_ended(database: &dyn Database) {
    let scene = begin(database).await;
    scene.store.end_session(scene.session).await.expect("ends");
    scene.store.end_session(scene.session).await.expect("ends twice");
    assert!(matches!(scene.store.renew_session(scene.session, LONG).await.expect("answers"), Renewal::Lost));
}

/// S4: rows of dead sessions are released under a new generation and claimed by another.
pub async fn rows_of_the_dead_are_claimed_by_others(database: &dyn Database) {
    let mut scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.end_session(scene.session).await.expect("ends");
    scene.session = open_session(&*scene.store, LONG).await;
    assert_eq!(scene.store.release_dead(100).await.expect("releases"), 1);
    assert_eq!(scene.store.release_dead(100).await.expect("releases"), 0);
    let claimed = scene.claim_one().await;
    assert_eq!((claimed.token.id, claimed.rescues), (sent.id, 1));
    assert!(claimed.token.generation > sent.token.generation);
}

/// S4: never because of `expires_at` alone, and never rows of the living.
pub async fn rows_of_the_living_and_the_expired_stay(database: &dyn Database) {
    let mut scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let alive = scene.send(&endpoint, Placement::BornClaimed).await;
    let keeper = scene.session;
    scene.session = open_session(&*scene.store, Duration::ZERO).await;
    let expired = scene.send(&endpoint, Placement::BornClaimed).await;
    assert_eq!(scene.store.release_dead(100).await.expect("releases"), 0);
    bury(&*scene.store, scene.session).await;
    assert_eq!(scene.store.release_dead(100).await.expect("releases"), 1);
    assert_eq!(scene.store.owned(keeper).await.expect("reads"), [alive.token]);
    assert!(scene.store.owned(expired.token.owner).await.expect("reads").is_empty());
}

/// S4: no more than asked for at a time, and in the end all.
pub async fn releasing_goes_in_chunks(database: &dyn Database) {
    let mut scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    for _ in 0..5 {
        scene.send(&endpoint, Placement::BornClaimed).await;
    }
    scene.store.end_session(scene.session).await.expect("ends");
    scene.session = open_session(&*scene.store, LONG).await;
    let mut released = Vec::new();
    for _ in 0..4 {
        released.push(scene.store.release_dead(2).await.expect("releases"));
    }
    assert_eq!(released, [2, 2, 1, 0]);
    assert_eq!(scene.claim(10).await.len(), 5);
}

/// S6: releasing matches whole tokens, and handing back is no rescue.
pub async fn releasing_matches_whole_tokens(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let mut stale = sent.token;
    stale.generation += 1;
    assert_eq!(scene.store.release(&[stale], Release::Rescue).await.expect("answers"), 0);
    assert_eq!(scene.store.release(&[sent.token], Release::HandBack).await.expect("answers"), 1);
    assert_eq!(scene.store.release(&[sent.token], Release::HandBack).await.expect("answers"), 0);
    assert_eq!(scene.claim_one().await.rescues, 0);
}

/// S4: rescues add up while no attempt is recorded, and a recorded one sets them back.
pub async fn rescues_count_until_an_attempt_is_recorded(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let mut token = sent.token;
    for rescues in 1..=3 {
        scene.store.release(&[token], Release::Rescue).await.expect("releases");
        let claimed = scene.claim_one().await;
        assert_eq!(claimed.rescues, rescues);
        token = claimed.token;
    }
    let mut item = scene.retry(&sent, scene.now().await).await;
    item.token = token;
    scene.flush(item).await;
    assert_eq!(scene.claim_one().await.rescues, 0);
}

/// A released row whose time lies ahead waits for it; one whose time is over is due now, above every floor.
pub async fn a_released_row_keeps_its_time(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let now = scene.now().await;
    let later = now.plus(Duration::from_secs(600));
    let (ahead, over) = (released_with(&scene, &endpoint, later).await, now.minus(Duration::from_secs(600)));
    let over = released_with(&scene, &endpoint, over).await;
    let record = scene.store.delivery(ahead, None).await.expect("reads").expect("is there");
    assert_eq!(record.due_at, Some(later));
    let floor = Some(now.minus(Duration::from_secs(30)));
    let claimed = scene.claim_of((0..256).collect(), floor, 10).await.deliveries;
    assert_eq!(claimed.iter().map(|row| row.token.id).collect::<Vec<_>>(), [over]);
}

/// A row that was parked for `at`, woken by a person's claim, and released.
async fn released_with(
    scene: &Scene,
    endpoint: &pombo_domain::endpoint::Endpoint,
    at: Timestamp,
) -> pombo_domain::id::DeliveryId {
    use super::scene::person;
    use crate::people::ManualClaim;
    let sent = scene.send(endpoint, Placement::DueAt(at)).await;
    let claim = scene.store.claim_manually(sent.id, scene.session, &person()).await.expect("claims");
    let ManualClaim::Claimed(claimed) = claim else { panic!("the row was free") };
    scene.store.release(&[claimed.token], Release::Rescue).await.expect("releases");
    sent.id
}

/// A lease has one holder; its epoch grows with every take-over and with nothing else (R3).
pub async fn a_lease_is_taken_over_only_from_the_dead(database: &dyn Database) {
    let scene = begin(database).await;
    let (first, second) = (scene.session, open_session(&*scene.store, LONG).await);
    let hold = async |session| scene.store.hold_lease(LeaseName::OwnOutbox, session).await.expect("answers");
    let epoch = hold(first).await.expect("the lease was free");
    assert_eq!(hold(first).await, Some(epoch));
    assert_eq!(hold(second).await, None);
    let other = scene.store.hold_lease(LeaseName::Maintenance, second).await.expect("answers");
    assert!(other.is_some(), "leases are apart");
    scene.store.end_session(first).await.expect("ends");
    assert_eq!(hold(first).await, None, "the dead hold nothing");
    assert_eq!(hold(second).await, Some(epoch + 1));
    assert_eq!(hold(second).await, Some(epoch + 1));
}

/// S1: dead sessions stay for a day, and longer while they own something; then they go.
pub async fn dead_sessions_are_forgotten_after_a_day(database: &dyn Database) {
    let mut scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let owner = scene.session;
    scene.send(&endpoint, Placement::BornClaimed).await;
    let idle = open_session(&*scene.store, LONG).await;
    scene.session = open_session(&*scene.store, LONG).await;
    for session in [owner, idle] {
        scene.store.end_session(session).await.expect("ends");
    }
    assert_eq!(scene.store.forget_sessions().await.expect("forgets"), 0);
    let long_ago = database.time(scene.now().await.minus(Duration::from_secs(2 * 24 * 3600)));
    let table = database.table("session");
    database.execute(&format!("UPDATE {table} SET died_at = {long_ago} WHERE state = 'dead'")).await;
    assert_eq!(scene.store.forget_sessions().await.expect("forgets"), 1);
    assert_eq!(scene.store.release_dead(10).await.expect("releases"), 1, "the owner is known still");
    assert_eq!(scene.store.forget_sessions().await.expect("forgets"), 1);
}
