//! Sessions and leases (S). One process, so the lock on the file proves what time proves elsewhere; the
//! rules are the same.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior, params};

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::{DeliveryId, SessionId};
use pombo_store::error::Result;
use pombo_store::sessions::{Epoch, Heartbeat, LeaseName, NewSession, Release, Renewal, Sessions};

use crate::error::Fault;
use crate::{SqliteStore, Tx, clock, migrate, rows};

/// A dead session's row stays for a day (S1).
const DEAD_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Buries every session of earlier processes and releases their rows: the lock proves that none runs (Q1).
pub(crate) fn bury_earlier(connection: &Connection) -> Result<(), Fault> {
    if !migrate::is_set_up(connection)? {
        return Ok(());
    }
    let transaction = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let tx = Tx { connection: &transaction, now: clock::now() };
    let buried = rows::change(
        &tx,
        "-- pombo:bury_earlier\nUPDATE pombo_session SET state = 'dead', died_at = ?1 WHERE state = 'live'",
        params![tx.now.as_micros()],
    )?;
    let tokens = owned_by_the_dead(&tx, u32::MAX)?;
    let released = release_tokens(&tx, &tokens, Release::Rescue)?;
    transaction.commit()?;
    if released > 0 {
        tracing::info!(sessions = buried, deliveries = released, "released what an earlier process left");
    }
    Ok(())
}

/// Rows whose owner is **dead**, never "not live" (S4). A dead session stays dead, so what was read here
/// stays true until the release, which matches whole tokens.
fn owned_by_the_dead(connection: &Connection, limit: u32) -> Result<Vec<Token>, Fault> {
    rows::all(
        connection,
        "delivery",
        "-- pombo:owned_by_the_dead\n\
         SELECT id, owner, gen FROM pombo_delivery\n\
         WHERE owner IN (SELECT id FROM pombo_session WHERE state = 'dead') LIMIT ?1",
        params![limit],
        read_token,
    )
}

fn read_token(row: &rows::Fields<'_>) -> Result<Token, Fault> {
    Ok(Token {
        id: DeliveryId(row.uuid(0, "id")?),
        owner: SessionId(row.int(1, "owner")?),
        generation: row.int(2, "gen")?,
    })
}

/// `owner NULL, gen+1`, due at the time it waits for, or now: never in the past, where a claim's floor
/// would hide it (C2). A row that was parked when a person took it is parked again.
fn release_tokens(tx: &Tx<'_>, tokens: &[Token], why: Release) -> Result<u32, Fault> {
    let rescued = i64::from(why == Release::Rescue);
    let mut released = 0;
    for token in tokens {
        released += rows::change(
            tx,
            "-- pombo:release\n\
             UPDATE pombo_delivery\n\
             SET owner = NULL, gen = gen + 1, rescues = rescues + ?4, due_at = max(coalesce(not_before, 0), ?5),\n\
                 not_before = NULL\n\
             WHERE id = ?1 AND owner = ?2 AND gen = ?3",
            params![token.id.0.as_bytes(), token.owner.0, token.generation, rescued, tx.now.as_micros()],
        )?;
    }
    Ok(released as u32)
}

fn heartbeat(tx: &Tx<'_>, epoch: Epoch) -> Result<Heartbeat, Fault> {
    let deliverers = rows::all(
        tx,
        "session",
        "-- pombo:deliverers\n\
         SELECT id FROM pombo_session WHERE state = 'live' AND draining = 0 AND deliver = 1 ORDER BY id",
        (),
        |row| row.int(0, "id").map(SessionId),
    )?;
    Ok(Heartbeat { now: tx.now, epoch, config_version: config_version(tx)?, deliverers })
}

/// The version of the configuration (A3).
pub(crate) fn config_version(connection: &Connection) -> Result<i64, Fault> {
    let version = rows::first(
        connection,
        "config",
        "-- pombo:config_version\nSELECT version FROM pombo_config WHERE one = 1",
        (),
        |row| row.int(0, "version"),
    )?;
    version.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
}

fn end_of(now: Timestamp, ttl: Duration) -> i64 {
    now.plus(ttl).as_micros()
}

/// Whether a session is live.
fn is_live(tx: &Tx<'_>, session: SessionId) -> Result<bool, Fault> {
    let live = rows::first(
        tx,
        "session",
        "-- pombo:session_is_live\nSELECT id FROM pombo_session WHERE id = ?1 AND state = 'live'",
        params![session.0],
        |_| Ok(()),
    )?;
    Ok(live.is_some())
}

/// Whether the session holds the lease at this epoch (R3). Within the writer's transaction nothing can take
/// it over before the commit.
pub(crate) fn holds_lease(
    tx: &Tx<'_>,
    name: LeaseName,
    session: SessionId,
    epoch: i64,
) -> Result<bool, Fault> {
    let held = rows::first(
        tx,
        "lease",
        "-- pombo:holds_lease\nSELECT name FROM pombo_lease WHERE name = ?1 AND holder = ?2 AND epoch = ?3",
        params![name.as_str(), session.0, epoch],
        |_| Ok(()),
    )?;
    Ok(held.is_some() && is_live(tx, session)?)
}

fn take_lease(tx: &Tx<'_>, name: LeaseName, session: SessionId) -> Result<Option<i64>, Fault> {
    if !is_live(tx, session)? {
        return Ok(None);
    }
    // Taken where it is new, kept where it is ours, taken over where its holder is not live any more.
    rows::first(
        tx,
        "lease",
        "-- pombo:hold_lease\n\
         INSERT INTO pombo_lease (name, holder, epoch) VALUES (?1, ?2, 1)\n\
         ON CONFLICT (name) DO UPDATE\n\
         SET epoch = epoch + (holder <> excluded.holder), holder = excluded.holder\n\
         WHERE holder = excluded.holder\n\
            OR NOT EXISTS (SELECT 1 FROM pombo_session AS s WHERE s.id = holder AND s.state = 'live')\n\
         RETURNING name, epoch",
        params![name.as_str(), session.0],
        |row| row.int(1, "epoch"),
    )
}

#[async_trait]
impl Sessions for SqliteStore {
    async fn open_session(&self, session: NewSession) -> Result<(SessionId, Heartbeat)> {
        let epoch = self.epoch.clone();
        self.write(move |tx| {
            let roles = session.roles;
            rows::change(
                tx,
                "-- pombo:open_session\n\
                 INSERT INTO pombo_session (node, api, relay, deliver, opened_at, expires_at)\n\
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    session.node,
                    roles.api,
                    roles.relay,
                    roles.deliver,
                    tx.now.as_micros(),
                    end_of(tx.now, session.ttl)
                ],
            )?;
            let id = SessionId(tx.last_insert_rowid() as i32);
            Ok((id, heartbeat(tx, epoch)?))
        })
        .await
    }

    async fn renew_session(&self, id: SessionId, ttl: Duration) -> Result<Renewal> {
        let epoch = self.epoch.clone();
        self.write(move |tx| {
            let renewed = rows::change(
                tx,
                "-- pombo:renew_session\n\
                 UPDATE pombo_session SET expires_at = ?2 WHERE id = ?1 AND state = 'live' AND expires_at > ?3",
                params![id.0, end_of(tx.now, ttl), tx.now.as_micros()],
            )?;
            if renewed == 0 { Ok(Renewal::Lost) } else { heartbeat(tx, epoch).map(Renewal::Renewed) }
        })
        .await
    }

    async fn drain_session(&self, id: SessionId) -> Result<()> {
        self.write(move |tx| {
            let sql = "-- pombo:drain_session\nUPDATE pombo_session SET draining = 1 WHERE id = ?1";
            rows::change(tx, sql, params![id.0]).map(drop)
        })
        .await
    }

    async fn end_session(&self, id: SessionId) -> Result<()> {
        self.write(move |tx| {
            rows::change(
                tx,
                "-- pombo:end_session\n\
                 UPDATE pombo_session SET state = 'dead', died_at = ?2 WHERE id = ?1 AND state = 'live'",
                params![id.0, tx.now.as_micros()],
            )
            .map(drop)
        })
        .await
    }

    async fn bury_expired_sessions(&self) -> Result<Vec<SessionId>> {
        self.write(|tx| {
            rows::all(
                tx,
                "session",
                "-- pombo:bury_expired_sessions\n\
                 UPDATE pombo_session SET state = 'dead', died_at = ?1\n\
                 WHERE state = 'live' AND expires_at < ?1 RETURNING id",
                params![tx.now.as_micros()],
                |row| row.int(0, "id").map(SessionId),
            )
        })
        .await
    }

    async fn release_dead(&self, limit: u32) -> Result<u32> {
        // Found by a reader: the scan of all live rows (no index on the owner, T3) must not hold the writer.
        let tokens = self.read(move |tx| owned_by_the_dead(tx, limit)).await?;
        if tokens.is_empty() {
            return Ok(0);
        }
        self.write(move |tx| release_tokens(tx, &tokens, Release::Rescue)).await
    }

    async fn owned(&self, session: SessionId) -> Result<Vec<Token>> {
        self.read(move |tx| {
            rows::all(
                tx,
                "delivery",
                "-- pombo:owned\nSELECT id, owner, gen FROM pombo_delivery WHERE owner = ?1",
                params![session.0],
                read_token,
            )
        })
        .await
    }

    async fn release(&self, tokens: &[Token], why: Release) -> Result<u32> {
        let tokens = tokens.to_vec();
        self.write(move |tx| release_tokens(tx, &tokens, why)).await
    }

    async fn forget_sessions(&self) -> Result<u32> {
        let now = clock::now();
        let forgettable = self
            .read(move |tx| {
                rows::all(
                    tx,
                    "session",
                    "-- pombo:forgettable_sessions\n\
                     SELECT id FROM pombo_session WHERE state = 'dead' AND died_at < ?1\n\
                     AND id NOT IN (SELECT owner FROM pombo_delivery WHERE owner IS NOT NULL)",
                    params![now.minus(DEAD_KEPT_FOR).as_micros()],
                    |row| row.int::<i32>(0, "id"),
                )
            })
            .await?;
        if forgettable.is_empty() {
            return Ok(0);
        }
        self.write(move |tx| {
            let mut forgotten = 0;
            for id in &forgettable {
                let sql =
                    "-- pombo:forget_session\nDELETE FROM pombo_session WHERE id = ?1 AND state = 'dead'";
                forgotten += rows::change(tx, sql, params![id])?;
            }
            Ok(forgotten as u32)
        })
        .await
    }

    async fn hold_lease(&self, name: LeaseName, session: SessionId) -> Result<Option<i64>> {
        self.write(move |tx| take_lease(tx, name, session)).await
    }
}
