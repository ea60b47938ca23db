//! Signing secrets, sealed. The one with the largest `n` is current.

use std::time::Duration;

use rusqlite::params;

use pombo_domain::id::EndpointId;
use pombo_domain::secret::SecretText;
use pombo_store::endpoints::EndpointSecret;
use pombo_store::keyring::{Keyring, Place};

use crate::error::Fault;
use crate::{Tx, rows};

/// Binds a sealed secret to its row.
fn row_key(id: EndpointId, n: i32) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(id.0.as_bytes());
    key[16..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Adds a secret, which becomes the current one.
pub(super) fn add(tx: &Tx<'_>, ring: &Keyring, id: EndpointId, secret: &SecretText) -> Result<(), Fault> {
    let last = rows::first(
        tx,
        "secret",
        "-- pombo:last_secret\nSELECT coalesce(max(n), 0) FROM pombo_secret WHERE endpoint_id = ?1",
        params![id.0.as_bytes()],
        |row| row.int::<i32>(0, "n"),
    )?;
    let n = last.unwrap_or(0) + 1;
    let sealed = ring.seal(Place { table: "secret", row: &row_key(id, n) }, secret, &mut rand::rng());
    rows::change(
        tx,
        "-- pombo:add_secret\n\
         INSERT INTO pombo_secret (endpoint_id, n, sealed, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![id.0.as_bytes(), n, sealed, tx.now.as_micros()],
    )?;
    Ok(())
}

/// Lets the secrets there are sign until the overlap is over, or their own earlier end, and forgets those whose
/// time is over. All of them: whoever rotates without overlap has lost a secret, and none may live on.
pub(super) fn retire_current(tx: &Tx<'_>, id: EndpointId, overlap: Duration) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:retire_secret\n\
         UPDATE pombo_secret SET expires_at = min(coalesce(expires_at, ?2), ?2) WHERE endpoint_id = ?1",
        params![id.0.as_bytes(), tx.now.plus(overlap).as_micros()],
    )?;
    rows::change(
        tx,
        // The newest row stays, expired or not: the next number is counted from it.
        "-- pombo:forget_secrets\n\
         DELETE FROM pombo_secret WHERE endpoint_id = ?1 AND expires_at <= ?2\n\
         AND n < (SELECT max(n) FROM pombo_secret WHERE endpoint_id = ?1)",
        params![id.0.as_bytes(), tx.now.as_micros()],
    )?;
    Ok(())
}

/// Forgets all of them.
pub(super) fn forget(tx: &Tx<'_>, id: EndpointId) -> Result<(), Fault> {
    let sql = "-- pombo:forget_all_secrets\nDELETE FROM pombo_secret WHERE endpoint_id = ?1";
    rows::change(tx, sql, params![id.0.as_bytes()]).map(drop)
}

/// Those that sign: the current one, then older ones, newest first.
pub(super) fn of(tx: &Tx<'_>, ring: &Keyring, id: EndpointId) -> Result<Vec<EndpointSecret>, Fault> {
    rows::all(
        tx,
        "secret",
        "-- pombo:secrets\n\
         SELECT endpoint_id, n, sealed, created_at, expires_at FROM pombo_secret\n\
         WHERE endpoint_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY n DESC",
        params![id.0.as_bytes(), tx.now.as_micros()],
        |row| {
            let n = row.int(1, "n")?;
            let place = Place { table: "secret", row: &row_key(id, n) };
            Ok(EndpointSecret {
                secret: ring.open(place, row.bytes(2, "sealed")?)?,
                created_at: row.time(3, "created_at")?,
                expires_at: row.opt_time(4, "expires_at")?,
            })
        },
    )
}
