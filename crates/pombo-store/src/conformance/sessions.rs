//! Sessions and leases (S).

use super::Database;
use super::scene::{LONG, begin, open_session};

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
