//! Proving the invariants from the database alone (P4), in one snapshot.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::named_params;

use pombo_domain::id::EndpointId;
use pombo_store::admin::{CheckReport, Finding};
use pombo_store::error::Result;
use pombo_store::keyring::Keyring;

use crate::endpoints::opens;
use crate::error::Fault;
use crate::{SqliteStore, Tx, rows};

/// A check reads everything. It holds up no writer; only the WAL grows meanwhile.
const CHECK_MAX: Duration = Duration::from_secs(600);
/// How long a sweep may take to get to something (S4: in full every minute).
const SWEEP: Duration = Duration::from_secs(120);
/// A row due for longer than this, with a process there to send, is not found by any claim.
const STUCK: Duration = Duration::from_secs(3600);

/// A rule, and the query that finds what breaks it: a key to name, for each row. `:swept` is an instant by
/// which every sweep has been everywhere, `:stuck` one before which nothing due is left.
struct Rule {
    invariant: &'static str,
    text: &'static str,
    broken: &'static str,
}

/// Whether a process has been there to deliver for longer than a sweep.
const WATCHED: &str = "EXISTS (SELECT 1 FROM pombo_session AS s WHERE s.state = 'live' AND s.deliver = 1\n\
    AND s.opened_at < :swept AND s.expires_at > :now)";

const RULES: [Rule; 14] = [
    Rule {
        invariant: "unaccounted_event",
        text: "events whose deliveries, live and settled together, are not as many as they were given",
        broken: "SELECT e.id FROM pombo_event AS e LEFT JOIN (\n\
            SELECT event_id, count(*) AS found FROM (\n\
                SELECT event_id, id FROM pombo_delivery\n\
                UNION SELECT event_id, delivery_id FROM pombo_attempt WHERE settles IS NOT NULL\n\
            ) GROUP BY event_id\n\
            ) AS f ON f.event_id = e.id WHERE e.fanout <> coalesce(f.found, 0)",
    },
    Rule {
        invariant: "live_and_settled",
        text: "deliveries that are live although this run of theirs has been settled",
        broken: "SELECT d.id FROM pombo_delivery AS d WHERE EXISTS (SELECT 1 FROM pombo_attempt AS a\n\
            WHERE a.delivery_id = d.id AND a.settles IS NOT NULL AND a.gen >= d.gen)",
    },
    Rule {
        invariant: "live_dead_letter",
        text: "deliveries that are live and dead letters at once",
        broken: "SELECT d.id FROM pombo_delivery AS d JOIN pombo_dead_letter AS l ON l.delivery_id = d.id",
    },
    Rule {
        invariant: "dead_letter_without_death",
        text: "dead letters whose delivery did not end dead",
        broken: "SELECT l.delivery_id FROM pombo_dead_letter AS l WHERE 'dead' IS NOT (\n\
            SELECT a.settles FROM pombo_attempt AS a WHERE a.delivery_id = l.delivery_id\n\
            AND a.settles IS NOT NULL ORDER BY a.started_at DESC LIMIT 1)",
    },
    Rule {
        invariant: "death_without_dead_letter",
        text: "deliveries that ended dead and are neither live again nor dead letters",
        broken: "SELECT a.delivery_id FROM pombo_attempt AS a WHERE a.settles = 'dead'\n\
            AND NOT EXISTS (SELECT 1 FROM pombo_attempt AS b WHERE b.delivery_id = a.delivery_id\n\
                AND b.started_at > a.started_at AND b.settles IS NOT NULL)\n\
            AND NOT EXISTS (SELECT 1 FROM pombo_delivery AS d WHERE d.id = a.delivery_id)\n\
            AND NOT EXISTS (SELECT 1 FROM pombo_dead_letter AS l WHERE l.delivery_id = a.delivery_id)",
    },
    Rule {
        invariant: "body_missing",
        text: "live deliveries and dead letters whose event is not in the database",
        broken: "SELECT d.id FROM pombo_delivery AS d WHERE NOT EXISTS (\n\
                SELECT 1 FROM pombo_event AS e WHERE e.id = d.event_id)\n\
            UNION ALL SELECT l.delivery_id FROM pombo_dead_letter AS l WHERE NOT EXISTS (\n\
                SELECT 1 FROM pombo_event AS e WHERE e.id = l.event_id)",
    },
    Rule {
        invariant: "unknown_owner",
        text: "deliveries owned by a session that was never opened, or was forgotten",
        broken: "SELECT d.id FROM pombo_delivery AS d WHERE d.owner IS NOT NULL AND NOT EXISTS (\n\
            SELECT 1 FROM pombo_session AS s WHERE s.id = d.owner)",
    },
    Rule {
        invariant: "dead_owner",
        text: "deliveries still owned by a session that has been dead for longer than a sweep takes",
        broken: "SELECT d.id FROM pombo_delivery AS d JOIN pombo_session AS s ON s.id = d.owner\n\
            WHERE s.state = 'dead' AND s.died_at < :swept",
    },
    Rule {
        invariant: "overdue",
        text: "deliveries due for more than an hour although a process is there to send them",
        broken: "SELECT d.id FROM pombo_delivery AS d WHERE d.due_at < 9223372036854775807\n\
            AND d.due_at < :stuck",
    },
    Rule {
        invariant: "parked_for_nothing",
        text: "parked deliveries of an active endpoint that nothing is on its way to wake",
        broken: "SELECT d.id FROM pombo_delivery AS d JOIN pombo_endpoint AS e ON e.id = d.endpoint_id\n\
            WHERE d.due_at = 9223372036854775807 AND e.status = 'active' AND e.deleted_at IS NULL\n\
            AND e.updated_at < :swept\n\
            AND NOT EXISTS (SELECT 1 FROM pombo_endpoint_state AS h WHERE h.endpoint_id = e.id AND h.hold_until > :now)\n\
            AND e.id NOT IN (SELECT o.endpoint_id FROM pombo_delivery AS o\n\
                WHERE o.owner IS NOT NULL OR o.due_at < 9223372036854775807)",
    },
    Rule {
        invariant: "deleted_endpoint",
        text: "live deliveries of an endpoint that was deleted longer ago than a sweep takes",
        broken: "SELECT d.id FROM pombo_delivery AS d JOIN pombo_endpoint AS e ON e.id = d.endpoint_id\n\
            WHERE e.deleted_at < :swept",
    },
    Rule {
        invariant: "unknown_endpoint",
        text: "live deliveries of an endpoint that never existed",
        broken: "SELECT d.id FROM pombo_delivery AS d WHERE NOT EXISTS (\n\
            SELECT 1 FROM pombo_endpoint AS e WHERE e.id = d.endpoint_id)",
    },
    Rule {
        invariant: "endpoint_ahead",
        text: "endpoints with a version that the configuration has not reached: no process will learn of them",
        broken: "SELECT e.id FROM pombo_endpoint AS e WHERE e.version > (SELECT version FROM pombo_config)",
    },
    Rule {
        invariant: "no_secret",
        text: "endpoints that do not have exactly one current signing secret",
        broken: "SELECT e.id FROM pombo_endpoint AS e WHERE e.deleted_at IS NULL AND 1 <> (\n\
            SELECT count(*) FROM pombo_secret AS s WHERE s.endpoint_id = e.id AND s.expires_at IS NULL)",
    },
];

/// Rules about what a running process does: broken only while one is there.
const WATCHED_RULES: [&str; 3] = ["overdue", "parked_for_nothing", "deleted_endpoint"];

impl Rule {
    fn find(&self, tx: &Tx<'_>) -> Result<Option<Finding>, Fault> {
        let watched = if WATCHED_RULES.contains(&self.invariant) { WATCHED } else { "TRUE" };
        // The parameters that a rule does not use are named once, so that every rule binds the same.
        let sql = format!(
            "-- pombo:check\n\
             WITH broken (id) AS ({})\n\
             SELECT count(*), min(id) FROM broken\n\
             WHERE {watched} AND :now IS NOT NULL AND :swept IS NOT NULL AND :stuck IS NOT NULL",
            self.broken
        );
        let parameters = named_params! {
            ":now": tx.now.as_micros(),
            ":swept": tx.now.minus(SWEEP).as_micros(),
            ":stuck": tx.now.minus(STUCK).as_micros(),
        };
        let found = rows::first(tx, self.invariant, &sql, parameters, |row| {
            Ok((row.int::<i64>(0, "count")?, row.opt_uuid(1, "id")?))
        })?;
        Ok(found.filter(|(count, _)| *count > 0).map(|(count, example)| Finding {
            invariant: self.invariant,
            count,
            text: format!("{count} {}, such as {}", self.text, example.unwrap_or_default()),
        }))
    }
}

/// SQLite's own look at pages and indexes.
fn find_damage(tx: &Tx<'_>) -> Result<Option<Finding>, Fault> {
    let sql = "-- pombo:check_pages\nPRAGMA integrity_check(20)";
    let complaints =
        rows::all(tx, "integrity_check", sql, (), |row| Ok(row.text(0, "integrity_check")?.to_owned()))?;
    if complaints == ["ok"] {
        return Ok(None);
    }
    let text = format!("the file is damaged: {}", complaints.first().map_or("", String::as_str));
    Ok(Some(Finding { invariant: "damaged_file", count: complaints.len() as i64, text }))
}

/// Sealed values that this installation's master key does not open.
fn find_sealed(tx: &Tx<'_>, ring: &Keyring) -> Result<Option<Finding>, Fault> {
    let sql = "-- pombo:check_endpoints\nSELECT id FROM pombo_endpoint WHERE deleted_at IS NULL";
    let endpoints = rows::all(tx, "endpoint", sql, (), |row| row.uuid(0, "id").map(EndpointId))?;
    let mut closed = Vec::new();
    for endpoint in endpoints {
        if !opens(tx, ring, endpoint)? {
            closed.push(endpoint);
        }
    }
    Ok(closed.first().map(|example| Finding {
        invariant: "sealed",
        count: closed.len() as i64,
        text: format!(
            "{} endpoints with secrets or headers that this master key does not open, such as {example}",
            closed.len()
        ),
    }))
}

fn count(tx: &Tx<'_>, sql: &'static str) -> Result<i64, Fault> {
    Ok(rows::first(tx, "check", sql, (), |row| row.int(0, "count"))?.unwrap_or(0))
}

fn check(tx: &Tx<'_>, ring: &Keyring) -> Result<CheckReport, Fault> {
    let mut findings = Vec::new();
    findings.extend(find_damage(tx)?);
    for rule in &RULES {
        findings.extend(rule.find(tx)?);
    }
    findings.extend(find_sealed(tx, ring)?);
    Ok(CheckReport {
        events: count(tx, "-- pombo:check_events\nSELECT count(*) FROM pombo_event")?,
        live: count(tx, "-- pombo:check_live\nSELECT count(*) FROM pombo_delivery")?,
        settled: count(
            tx,
            "-- pombo:check_settled\n\
             SELECT count(DISTINCT delivery_id) FROM pombo_attempt WHERE settles IS NOT NULL\n\
             AND delivery_id NOT IN (SELECT id FROM pombo_delivery)",
        )?,
        dead: count(tx, "-- pombo:check_dead\nSELECT count(*) FROM pombo_dead_letter")?,
        findings,
    })
}

impl SqliteStore {
    pub(crate) async fn run_check(&self) -> Result<CheckReport> {
        let ring = Arc::clone(&self.config.keyring);
        self.readers.run_for(CHECK_MAX, move |tx| check(tx, &ring)).await
    }
}
