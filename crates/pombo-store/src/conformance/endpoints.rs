//! Endpoints, secrets and the catalogue (A3).

use std::time::Duration;

use pombo_domain::endpoint::{
    CustomHeader, DisabledReason, EndpointStatus, EndpointUrl, HeaderStyle, StoreResponses,
};
use pombo_domain::event_type::Subscription;
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::retry::{Backoff, Jitter, RetryPolicy};
use pombo_domain::secret::SecretText;

use super::Database;
use super::scene::{SECRET, Scene, begin, first, fresh_uuid, person, settings, tenant};
use crate::endpoints::{EndpointFilter, StatusChange};
use crate::page::PageRequest;

const SECOND: &str = "whsec_c2Vjb25kIHNlY3JldCBvZiB0aGUgcGlnZW9u";
const THIRD: &str = "whsec_dGhpcmQgc2VjcmV0IG9mIHRoZSBwaWdlb24h";

fn secret(text: &str) -> SecretText {
    SecretText::new(text.to_owned())
}

async fn actions(scene: &Scene) -> Vec<String> {
    let entries = scene.store.audit(None, first(100)).await.expect("lists").items;
    entries.into_iter().rev().map(|entry| entry.action).collect()
}

/// Everything a person can set comes back as it was set.
pub async fn settings_come_back_as_they_were_set(database: &dyn Database) {
    let scene = begin(database).await;
    let mut full = settings();
    full.url = EndpointUrl::parse("https://example.com/hooks?token=ü&x=1").expect("a URL");
    full.description = Some("Für Bücher ☂".to_owned());
    let patterns = ["order.*", "user.created"].map(|pattern| pattern.parse().expect("a pattern"));
    full.subscription = Subscription::from_patterns(patterns.to_vec()).expect("patterns");
    full.headers = CustomHeader::check_all(vec![
        ("authorization".to_owned(), "Bearer tok-n-4711".to_owned()),
        ("x-b".to_owned(), "\"quoted\"".to_owned()),
    ])
    .expect("headers");
    full.header_style = HeaderStyle::Both;
    let delays = [0, 1, 90].map(Duration::from_secs).to_vec();
    full.retry = Some(RetryPolicy { backoff: Backoff::Schedule(delays), jitter: Jitter::Equal });
    full.timeout = Some(Duration::from_millis(2500));
    full.max_concurrency = 256;
    full.retry_client_errors = true;
    full.store_responses = StoreResponses::All;
    full.metadata.insert("a".to_owned(), serde_json::json!({"b": [1, null, "c"]}));
    let made = scene.endpoint_with("acme", full.clone()).await;
    assert_eq!(made.settings, full);
    assert_eq!((made.status, made.disabled_reason), (EndpointStatus::Active, None));
    assert_eq!(made.tenant_id, TenantId::of(&tenant("acme")));
    assert_eq!(scene.store.endpoint(made.id, None).await.expect("reads"), Some(made.clone()));

    let exponential = Backoff::Exponential {
        base: Duration::from_secs(1),
        factor: 3,
        cap: Duration::from_secs(3600),
        attempts: 9,
    };
    let mut changed = settings();
    changed.retry = Some(RetryPolicy { backoff: exponential, jitter: Jitter::Percent(0) });
    let updated = scene
        .store
        .update_endpoint(made.id, made.version, changed.clone(), &person())
        .await
        .expect("updates")
        .expect("the version was right");
    assert_eq!(updated.settings, changed);
    assert!(updated.version > made.version && updated.updated_at > made.updated_at);
    assert_eq!(updated.created_at, made.created_at);
}

/// An update against an older version changes nothing.
pub async fn an_update_needs_the_version_it_saw(database: &dyn Database) {
    let scene = begin(database).await;
    let made = scene.endpoint("acme").await;
    let mut other = settings();
    other.max_concurrency = 3;
    let update = async |version| {
        scene.store.update_endpoint(made.id, version, other.clone(), &person()).await.expect("answers")
    };
    assert!(update(made.version - 1).await.is_none());
    assert_eq!(scene.store.endpoint(made.id, None).await.expect("reads"), Some(made.clone()));
    assert!(update(made.version).await.is_some());
    assert!(update(made.version).await.is_none());
}

/// Pausing twice is pausing once: one bump, one audit entry.
pub async fn a_status_change_twice_is_once(database: &dyn Database) {
    let scene = begin(database).await;
    let made = scene.endpoint("acme").await;
    let set = async |change| {
        let answer = scene.store.set_endpoint_status(made.id, change, &person()).await.expect("answers");
        answer.expect("is there")
    };
    let once = set(StatusChange::Pause).await;
    assert_eq!(once.status, EndpointStatus::Paused);
    assert_eq!(set(StatusChange::Pause).await, once);
    let disabled = set(StatusChange::Disable(DisabledReason::Person)).await;
    assert_eq!(
        (disabled.status, disabled.disabled_reason),
        (EndpointStatus::Disabled, Some(DisabledReason::Person))
    );
    let active = set(StatusChange::Resume).await;
    assert_eq!((active.status, active.disabled_reason), (EndpointStatus::Active, None));
    let expected = ["endpoint.create", "endpoint.pause", "endpoint.disable", "endpoint.resume"];
    assert_eq!(actions(&scene).await, expected);
}

/// During the overlap both secrets sign, the current one first; afterwards only the current one.
pub async fn an_old_secret_signs_until_its_overlap_is_over(database: &dyn Database) {
    let scene = begin(database).await;
    let made = scene.endpoint("acme").await;
    let rotate = async |text, overlap| {
        let rotated = scene.store.rotate_secret(made.id, secret(text), overlap, &person()).await;
        rotated.expect("rotates").expect("is there")
    };
    let secrets = async || {
        let catalog = scene.store.catalog_changes(None).await.expect("a catalogue");
        let texts = catalog.changed[0].secrets.iter();
        texts
            .map(|secret| (secret.secret.expose().to_owned(), secret.expires_at.is_some()))
            .collect::<Vec<_>>()
    };
    assert_eq!(secrets().await, [(SECRET.to_owned(), false)]);
    let rotated = rotate(SECOND, Duration::from_secs(3600)).await;
    assert!(rotated.version > made.version);
    assert_eq!(secrets().await, [(SECOND.to_owned(), false), (SECRET.to_owned(), true)]);
    // Without overlap none of the older ones lives on.
    rotate(THIRD, Duration::ZERO).await;
    assert_eq!(secrets().await, [(THIRD.to_owned(), false)]);
    let revealed = scene.store.reveal_secrets(made.id, &person()).await.expect("reads").expect("is there");
    assert_eq!(revealed[0].secret.expose(), THIRD);
    assert_eq!(revealed.len(), 1);
    assert_eq!(actions(&scene).await.last().map(String::as_str), Some("endpoint.reveal_secret"));
}

/// A deleted endpoint is unknown to everything.
pub async fn a_deleted_endpoint_is_unknown(database: &dyn Database) {
    let scene = begin(database).await;
    let made = scene.endpoint("acme").await;
    let store = &scene.store;
    assert!(store.delete_endpoint(made.id, &person()).await.expect("deletes"));
    assert!(!store.delete_endpoint(made.id, &person()).await.expect("answers"));
    assert_eq!(store.endpoint(made.id, None).await.expect("reads"), None);
    let changed = store.set_endpoint_status(made.id, StatusChange::Pause, &person()).await;
    assert_eq!(changed.expect("answers"), None);
    let rotated = store.rotate_secret(made.id, secret(SECOND), Duration::ZERO, &person()).await;
    assert_eq!(rotated.expect("answers"), None);
    assert_eq!(store.reveal_secrets(made.id, &person()).await.expect("answers"), None);
    let page = store.endpoints(&EndpointFilter::default(), first(10)).await.expect("lists");
    assert!(page.items.is_empty());
    assert_eq!(actions(&scene).await, ["endpoint.create", "endpoint.delete"]);
}

/// An unknown endpoint is no error anywhere.
pub async fn an_unknown_endpoint_is_no_error(database: &dyn Database) {
    let scene = begin(database).await;
    let id = EndpointId(fresh_uuid());
    let store = &scene.store;
    assert_eq!(store.endpoint(id, None).await.expect("reads"), None);
    assert_eq!(store.update_endpoint(id, 1, settings(), &person()).await.expect("answers"), None);
    assert!(!store.delete_endpoint(id, &person()).await.expect("answers"));
    assert_eq!(store.set_endpoint_status(id, StatusChange::Resume, &person()).await.expect("answers"), None);
    assert!(actions(&scene).await.is_empty());
}

/// A3: the catalogue gives everything, and after that what changed and what was deleted.
pub async fn the_catalogue_tells_what_changed(database: &dyn Database) {
    let scene = begin(database).await;
    let (one, two, three) =
        (scene.endpoint("acme").await, scene.endpoint("acme").await, scene.endpoint("other").await);
    let all = scene.store.catalog_changes(None).await.expect("a catalogue");
    assert_eq!(all.changed.len(), 3);
    let none = scene.store.catalog_changes(Some(all.version)).await.expect("a catalogue");
    assert!(none.changed.is_empty() && none.deleted.is_empty() && none.version == all.version);
    scene.store.set_endpoint_status(one.id, StatusChange::Pause, &person()).await.expect("pauses");
    scene.store.delete_endpoint(two.id, &person()).await.expect("deletes");
    let some = scene.store.catalog_changes(Some(all.version)).await.expect("a catalogue");
    assert_eq!(some.changed.len(), 1);
    assert_eq!(some.changed[0].endpoint.status, EndpointStatus::Paused);
    assert_eq!(some.deleted, [two.id]);
    assert!(some.version > all.version);
    let mut left: Vec<_> = scene
        .store
        .catalog_changes(None)
        .await
        .expect("a catalogue")
        .changed
        .iter()
        .map(|entry| entry.endpoint.id)
        .collect();
    left.sort_unstable();
    let mut expected = [one.id, three.id];
    expected.sort_unstable();
    assert_eq!(left, expected);
}

/// Another tenant's endpoint answers like an unknown one, and lists show only one's own.
pub async fn endpoints_are_apart_by_tenant(database: &dyn Database) {
    let scene = begin(database).await;
    let (mine, theirs) = (scene.endpoint("acme").await, scene.endpoint("other").await);
    let acme = Some(mine.tenant_id);
    assert_eq!(scene.store.endpoint(theirs.id, acme).await.expect("reads"), None);
    assert_eq!(scene.store.endpoint(mine.id, acme).await.expect("reads").map(|e| e.id), Some(mine.id));
    let filter = EndpointFilter { tenant: acme, status: None };
    let page = scene.store.endpoints(&filter, first(10)).await.expect("lists");
    assert_eq!(page.items.iter().map(|endpoint| endpoint.id).collect::<Vec<_>>(), [mine.id]);
}

/// Lists run from new to old, in pages, and narrow by status.
pub async fn endpoints_are_listed_in_pages(database: &dyn Database) {
    let scene = begin(database).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(scene.endpoint("acme").await.id);
    }
    made.reverse();
    let mut seen = Vec::new();
    let mut request = PageRequest { limit: 2, after: None };
    loop {
        let page = scene.store.endpoints(&EndpointFilter::default(), request).await.expect("lists");
        seen.extend(page.items.iter().map(|endpoint| endpoint.id));
        match page.next {
            Some(next) => request.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, made);
    scene.store.set_endpoint_status(made[1], StatusChange::Pause, &person()).await.expect("pauses");
    let filter = EndpointFilter { status: Some(EndpointStatus::Paused), tenant: None };
    let page = scene.store.endpoints(&filter, first(10)).await.expect("lists");
    assert_eq!(page.items.iter().map(|endpoint| endpoint.id).collect::<Vec<_>>(), [made[1]]);
    assert_eq!(page.next, None);
}

/// Neither secrets nor header values stand in the database as they are.
pub async fn secrets_are_sealed(database: &dyn Database) {
    let scene = begin(database).await;
    let mut with_header = settings();
    with_header.headers =
        CustomHeader::check_all(vec![("authorization".to_owned(), "Bearer s3cr3t-4711".to_owned())])
            .expect("a header");
    let made = scene.endpoint_with("acme", with_header).await;
    scene.store.rotate_secret(made.id, secret(SECOND), LONG_OVERLAP, &person()).await.expect("rotates");
    assert!(database.holds(b"https://example.com/hooks").await, "the search finds what is plain");
    for needle in ["whsec_", SECRET, SECOND, "s3cr3t-4711"] {
        assert!(!database.holds(needle.as_bytes()).await, "{needle} is plain");
    }
    let store = database.reopen(scene.store).await;
    let read = store.endpoint(made.id, None).await.expect("reads").expect("is there");
    assert_eq!(read.headers[0].value.expose(), "Bearer s3cr3t-4711");
}

const LONG_OVERLAP: Duration = Duration::from_secs(3600);
