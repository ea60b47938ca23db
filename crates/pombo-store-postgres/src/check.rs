//! The invariants, proved from the database (docs/protocol.md P4).

use std::time::Duration;

use pombo_store::StoreError;
use pombo_store::admin::{CheckReport, Finding};
use sqlx::{PgConnection, Row};

use crate::PostgresStore;
use crate::error::Fault;
use crate::pool::{Durability, transaction};

/// Reads all of history: minutes on a large database.
const LIMIT: Duration = Duration::from_secs(1800);
const NO_TIMEOUT: &str = "SET LOCAL statement_timeout = 0";

const COUNTS: &str = "-- pombo:check_counts
SELECT (SELECT count(*) FROM pombo.event) AS events, (SELECT count(*) FROM pombo.delivery) AS live,
       (SELECT count(DISTINCT delivery_id) FROM pombo.attempt WHERE settles IS NOT NULL) AS settled,
       (SELECT count(*) FROM pombo.dead_letter) AS dead";

/// An invariant: a query that gives the ids of what breaks it, each in one snapshot.
struct Invariant {
    name: &'static str,
    /// For people; the count stands before it, an example behind.
    meaning: &'static str,
    sql: &'static str,
}

macro_rules! breaches {
    ($($sql:literal)*) => {
        concat!("-- pombo:check\nSELECT count(*) AS breaches, min(id::text) AS example FROM (", $($sql)*, ") AS b")
    };
}

/// The last settlement of each delivery.
macro_rules! last_settlements {
    () => {
        "SELECT DISTINCT ON (delivery_id) delivery_id, settles, gen FROM pombo.attempt
         WHERE settles IS NOT NULL ORDER BY delivery_id, started_at DESC"
    };
}

const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "unaccounted_event",
        meaning: "events whose deliveries are not all live or settled",
        sql: breaches!(
            "SELECT e.id FROM pombo.event AS e LEFT JOIN (
               SELECT event_id, count(*) AS n FROM (
                 SELECT id, event_id FROM pombo.delivery
                 UNION SELECT delivery_id, event_id FROM pombo.attempt WHERE settles IS NOT NULL
               ) AS known GROUP BY event_id
             ) AS c ON c.event_id = e.id WHERE e.fanout <> coalesce(c.n, 0)"
        ),
    },
    Invariant {
        name: "live_and_settled",
        meaning: "deliveries that are live although this run of them was settled",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d WHERE EXISTS (
               SELECT FROM pombo.attempt AS a
               WHERE a.delivery_id = d.id AND a.settles IS NOT NULL AND a.gen >= d.gen)"
        ),
    },
    Invariant {
        name: "dead_letter_missing",
        meaning: "deliveries that died without a dead letter",
        sql: concat!(
            "-- pombo:check\nSELECT count(*) AS breaches, min(s.delivery_id::text) AS example FROM (",
            last_settlements!(),
            ") AS s WHERE s.settles = 'dead'
               AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.id = s.delivery_id)
               AND NOT EXISTS (SELECT FROM pombo.dead_letter AS l WHERE l.delivery_id = s.delivery_id)"
        ),
    },
    Invariant {
        name: "dead_letter_unfounded",
        meaning: "dead letters of deliveries that are live again, or whose last end was another",
        sql: concat!(
            "-- pombo:check\nSELECT count(*) AS breaches, min(l.delivery_id::text) AS example
             FROM pombo.dead_letter AS l LEFT JOIN (",
            last_settlements!(),
            ") AS s ON s.delivery_id = l.delivery_id
             WHERE EXISTS (SELECT FROM pombo.delivery AS d WHERE d.id = l.delivery_id)
                OR s.settles <> 'dead'"
        ),
    },
    Invariant {
        name: "owner_unknown",
        meaning: "deliveries owned by a session that does not exist",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d WHERE d.owner IS NOT NULL
               AND NOT EXISTS (SELECT FROM pombo.session AS s WHERE s.id = d.owner)"
        ),
    },
    Invariant {
        name: "owner_dead",
        meaning: "deliveries owned by a session that has been dead for over two minutes, while others live",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d JOIN pombo.session AS s ON s.id = d.owner
             WHERE s.state = 'dead' AND s.died_at < clock_timestamp() - interval '2 min'
               AND EXISTS (SELECT FROM pombo.session AS l WHERE l.state = 'live' AND l.deliver
                             AND l.started_at < clock_timestamp() - interval '2 min'
                             AND l.expires_at > clock_timestamp())"
        ),
    },
    Invariant {
        name: "overdue",
        meaning: "deliveries due for over ten minutes that no process claims, although one is there",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d
             WHERE d.due_at < clock_timestamp() - interval '10 min'
               AND EXISTS (SELECT FROM pombo.session AS l WHERE l.state = 'live' AND l.deliver AND NOT l.draining
                             AND l.started_at < clock_timestamp() - interval '10 min'
                             AND l.expires_at > clock_timestamp())"
        ),
    },
    Invariant {
        name: "parked_without_reason",
        meaning: "deliveries parked although their endpoint is active and none of its deliveries is under way",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d
             JOIN pombo.endpoint AS e ON e.id = d.endpoint_id
             JOIN pombo.endpoint_state AS s ON s.endpoint_id = d.endpoint_id
             WHERE d.due_at = 'infinity' AND e.status = 'active' AND e.deleted_at IS NULL
               AND s.circuit = 'closed' AND e.updated_at < clock_timestamp() - interval '1 min'
               AND d.event_at < clock_timestamp() - interval '1 min'
               AND NOT EXISTS (SELECT FROM pombo.delivery AS o
                               WHERE o.endpoint_id = d.endpoint_id AND o.due_at IS DISTINCT FROM 'infinity')
               AND EXISTS (SELECT FROM pombo.session AS l WHERE l.state = 'live' AND l.deliver AND NOT l.draining
                             AND l.started_at < clock_timestamp() - interval '1 min'
                             AND l.expires_at > clock_timestamp())"
        ),
    },
    Invariant {
        name: "circuit_without_probe",
        meaning: "endpoints with an open circuit and a parked backlog that nothing will probe",
        sql: breaches!(
            "SELECT s.endpoint_id AS id FROM pombo.endpoint_state AS s
             WHERE s.circuit = 'open' AND s.circuit_until < clock_timestamp() - interval '1 min'
               AND EXISTS (SELECT FROM pombo.delivery AS d WHERE d.endpoint_id = s.endpoint_id)
               AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.endpoint_id = s.endpoint_id
                                 AND d.due_at IS DISTINCT FROM 'infinity')"
        ),
    },
    Invariant {
        name: "live_without_endpoint",
        meaning: "live deliveries of an endpoint that does not exist, or was deleted over an hour ago",
        sql: breaches!(
            "SELECT d.id FROM pombo.delivery AS d LEFT JOIN pombo.endpoint AS e ON e.id = d.endpoint_id
             WHERE e.id IS NULL OR e.deleted_at < clock_timestamp() - interval '1 hour'"
        ),
    },
    Invariant {
        name: "body_missing",
        meaning: "live deliveries or dead letters whose event's body is gone",
        sql: breaches!(
            "SELECT w.id FROM (
               SELECT id, event_id, event_at FROM pombo.delivery
               UNION ALL SELECT delivery_id, event_id, event_at FROM pombo.dead_letter
             ) AS w
             WHERE NOT EXISTS (SELECT FROM pombo.event AS e WHERE e.id = w.event_id AND e.created_at = w.event_at)
               AND NOT EXISTS (SELECT FROM pombo.kept_body AS k WHERE k.event_id = w.event_id)"
        ),
    },
    Invariant {
        name: "endpoint_incomplete",
        meaning: "endpoints without a current secret or without a state",
        sql: breaches!(
            "SELECT e.id FROM pombo.endpoint AS e WHERE e.deleted_at IS NULL AND (
               NOT EXISTS (SELECT FROM pombo.secret AS s WHERE s.endpoint_id = e.id AND s.expires_at IS NULL)
               OR NOT EXISTS (SELECT FROM pombo.endpoint_state AS s WHERE s.endpoint_id = e.id))"
        ),
    },
];

pub(crate) async fn check(store: &PostgresStore) -> Result<CheckReport, StoreError> {
    let mut pools = store.pools.clone();
    pools.silence = LIMIT;
    transaction!(pools, read, Durability::Asynchronous, |connection| prove(connection))
        .map_err(StoreError::from)
}

async fn prove(connection: &mut PgConnection) -> Result<CheckReport, Fault> {
    sqlx::raw_sql(NO_TIMEOUT).execute(&mut *connection).await?;
    let row = sqlx::query(COUNTS).persistent(false).fetch_one(&mut *connection).await?;
    let mut report = CheckReport {
        events: row.try_get("events")?,
        live: row.try_get("live")?,
        settled: row.try_get("settled")?,
        dead: row.try_get("dead")?,
        findings: Vec::new(),
    };
    for invariant in INVARIANTS {
        let row = sqlx::query(invariant.sql).persistent(false).fetch_one(&mut *connection).await?;
        let count: i64 = row.try_get("breaches")?;
        let example: Option<String> = row.try_get("example")?;
        if let Some(example) = example.filter(|_| count > 0) {
            report.findings.push(Finding {
                invariant: invariant.name,
                count,
                text: format!("{count} {}, such as {example}", invariant.meaning),
            });
        }
    }
    Ok(report)
}
