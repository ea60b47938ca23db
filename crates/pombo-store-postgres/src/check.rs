//! The invariants, proved from the database (docs/protocol.md P4).

use std::time::Duration;

use pombo_store::StoreError;
use pombo_store::admin::{CheckReport, Finding};
use pombo_store::keyring::Keyring;
use sqlx::{PgConnection, Row};

use crate::error::Fault;
use crate::pool::{Durability, transaction};
use crate::{PostgresStore, endpoints};

/// Reads all of history: minutes on a large database.
const LIMIT: Duration = Duration::from_secs(1800);
const NO_TIMEOUT: &str = "SET LOCAL statement_timeout = 0";

const COUNTS: &str = "-- pombo:check_counts
SELECT (SELECT count(*) FROM pombo.event) AS events, (SELECT count(*) FROM pombo.delivery) AS live,
       (SELECT count(DISTINCT a.delivery_id) FROM pombo.attempt AS a WHERE a.settles IS NOT NULL
          AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.id = a.delivery_id)) AS settled,
       (SELECT count(*) FROM pombo.dead_letter) AS dead";

/// A rule, and the query that finds what breaks it: an id to name, for each row. Each in one snapshot.
struct Rule {
    invariant: &'static str,
    /// For people; the count stands before it, an example behind.
    text: &'static str,
    broken: &'static str,
}

macro_rules! broken {
    ($broken:literal) => {
        concat!(
            "-- pombo:check\nSELECT count(*) AS broken, min(id::text) AS example FROM (",
            $broken,
            ") AS b"
        )
    };
}

/// About what running processes do: broken only while one has been there for longer than a sweep takes.
macro_rules! broken_while_watched {
    ($broken:literal) => {
        concat!(
            broken!($broken),
            " WHERE EXISTS (SELECT FROM pombo.session AS s WHERE s.state = 'live' AND s.deliver
                AND s.started_at < clock_timestamp() - interval '2 min' AND s.expires_at > clock_timestamp())"
        )
    };
}

const RULES: &[Rule] = &[
    // By id and time: an application that reuses an id of its outbox at another time makes another event.
    Rule {
        invariant: "unaccounted_event",
        text: "events whose deliveries, live and settled together, are not as many as they were given",
        broken: broken!(
            "SELECT e.id FROM pombo.event AS e LEFT JOIN (
               SELECT event_id, event_at, count(*) AS found FROM (
                 SELECT event_id, event_at, id FROM pombo.delivery
                 UNION SELECT event_id, event_at, delivery_id FROM pombo.attempt WHERE settles IS NOT NULL
               ) AS known GROUP BY event_id, event_at
             ) AS f ON f.event_id = e.id AND f.event_at = e.created_at WHERE e.fanout <> coalesce(f.found, 0)"
        ),
    },
    Rule {
        invariant: "live_and_settled",
        text: "deliveries that are live although this run of theirs has been settled",
        broken: broken!(
            "SELECT d.id FROM pombo.delivery AS d WHERE EXISTS (
               SELECT FROM pombo.attempt AS a
               WHERE a.delivery_id = d.id AND a.settles IS NOT NULL AND a.gen >= d.gen)"
        ),
    },
    Rule {
        invariant: "live_dead_letter",
        text: "deliveries that are live and dead letters at once",
        broken: broken!(
            "SELECT d.id FROM pombo.delivery AS d JOIN pombo.dead_letter AS l ON l.delivery_id = d.id"
        ),
    },
    // Dead letters outlive history: where no settlement is left, none can contradict.
    Rule {
        invariant: "dead_letter_without_death",
        text: "dead letters whose delivery did not end dead",
        broken: broken!(
            "SELECT l.delivery_id AS id FROM pombo.dead_letter AS l WHERE 'dead' <> (
               SELECT a.settles FROM pombo.attempt AS a
               WHERE a.delivery_id = l.delivery_id AND a.settles IS NOT NULL
               ORDER BY a.started_at DESC LIMIT 1)"
        ),
    },
    Rule {
        invariant: "death_without_dead_letter",
        text: "deliveries that ended dead and are neither live again nor dead letters",
        broken: broken!(
            "SELECT a.delivery_id AS id FROM pombo.attempt AS a WHERE a.settles = 'dead'
               AND NOT EXISTS (SELECT FROM pombo.attempt AS b WHERE b.delivery_id = a.delivery_id
                                 AND b.started_at > a.started_at AND b.settles IS NOT NULL)
               AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.id = a.delivery_id)
               AND NOT EXISTS (SELECT FROM pombo.dead_letter AS l WHERE l.delivery_id = a.delivery_id)"
        ),
    },
    Rule {
        invariant: "body_missing",
        text: "live deliveries and dead letters whose event's body is gone",
        broken: broken!(
            "SELECT w.id FROM (
               SELECT id, event_id, event_at FROM pombo.delivery
               UNION ALL SELECT delivery_id, event_id, event_at FROM pombo.dead_letter
             ) AS w
             WHERE NOT EXISTS (SELECT FROM pombo.event AS e WHERE e.id = w.event_id AND e.created_at = w.event_at)
               AND NOT EXISTS (SELECT FROM pombo.kept_body AS k WHERE k.event_id = w.event_id)"
        ),
    },
    Rule {
        invariant: "unknown_owner",
        text: "deliveries owned by a session that was never opened, or was forgotten",
        broken: broken!(
            "SELECT d.id FROM pombo.delivery AS d WHERE d.owner IS NOT NULL
               AND NOT EXISTS (SELECT FROM pombo.session AS s WHERE s.id = d.owner)"
        ),
    },
    Rule {
        invariant: "dead_owner",
        text: "deliveries still owned by a session that has been dead for longer than a sweep takes",
        broken: broken!(
            "SELECT d.id FROM pombo.delivery AS d JOIN pombo.session AS s ON s.id = d.owner
             WHERE s.state = 'dead' AND s.died_at < clock_timestamp() - interval '2 min'"
        ),
    },
    Rule {
        invariant: "overdue",
        text: "deliveries due for more than an hour although a process is there to send them",
        broken: broken_while_watched!(
            "SELECT d.id FROM pombo.delivery AS d WHERE d.due_at < clock_timestamp() - interval '1 hour'"
        ),
    },
    Rule {
        invariant: "parked_for_nothing",
        text: "parked deliveries of an active endpoint that nothing is on its way to wake",
        broken: broken_while_watched!(
            "SELECT d.id FROM pombo.delivery AS d
             JOIN pombo.endpoint AS e ON e.id = d.endpoint_id
             LEFT JOIN pombo.endpoint_state AS h ON h.endpoint_id = d.endpoint_id
             WHERE d.due_at = 'infinity' AND e.status = 'active' AND e.deleted_at IS NULL
               AND e.updated_at < clock_timestamp() - interval '2 min'
               AND (h.hold_until > clock_timestamp()) IS NOT TRUE
               AND NOT EXISTS (SELECT FROM pombo.delivery AS o
                               WHERE o.endpoint_id = d.endpoint_id AND o.due_at IS DISTINCT FROM 'infinity')"
        ),
    },
    Rule {
        invariant: "deleted_endpoint",
        text: "live deliveries of an endpoint that was deleted longer ago than a sweep takes",
        broken: broken_while_watched!(
            "SELECT d.id FROM pombo.delivery AS d JOIN pombo.endpoint AS e ON e.id = d.endpoint_id
             WHERE e.deleted_at < clock_timestamp() - interval '2 min'"
        ),
    },
    Rule {
        invariant: "unknown_endpoint",
        text: "live deliveries of an endpoint that never existed",
        broken: broken!(
            "SELECT d.id FROM pombo.delivery AS d
             WHERE NOT EXISTS (SELECT FROM pombo.endpoint AS e WHERE e.id = d.endpoint_id)"
        ),
    },
    Rule {
        invariant: "endpoint_ahead",
        text: "endpoints with a version that the configuration has not reached: no process will learn of them",
        broken: broken!(
            "SELECT e.id FROM pombo.endpoint AS e WHERE e.version > (SELECT version FROM pombo.config WHERE one)"
        ),
    },
    Rule {
        invariant: "no_secret",
        text: "endpoints that do not have exactly one current signing secret",
        broken: broken!(
            "SELECT e.id FROM pombo.endpoint AS e WHERE e.deleted_at IS NULL AND 1 <> (
               SELECT count(*) FROM pombo.secret AS s WHERE s.endpoint_id = e.id AND s.expires_at IS NULL)"
        ),
    },
    Rule {
        invariant: "no_state",
        text: "endpoints without a state: nothing of theirs can be woken",
        broken: broken!(
            "SELECT e.id FROM pombo.endpoint AS e WHERE e.deleted_at IS NULL
               AND NOT EXISTS (SELECT FROM pombo.endpoint_state AS s WHERE s.endpoint_id = e.id)"
        ),
    },
];

impl Rule {
    async fn find(&self, connection: &mut PgConnection) -> Result<Option<Finding>, Fault> {
        let row = sqlx::query(self.broken).persistent(false).fetch_one(connection).await?;
        let count: i64 = row.try_get("broken")?;
        let example: Option<String> = row.try_get("example")?;
        Ok((count > 0).then(|| Finding {
            invariant: self.invariant,
            count,
            text: format!("{count} {}, such as {}", self.text, example.unwrap_or_default()),
        }))
    }
}

pub(crate) async fn check(store: &PostgresStore) -> Result<CheckReport, StoreError> {
    let mut pools = store.pools.clone();
    pools.silence = LIMIT;
    transaction!(pools, read, Durability::Asynchronous, |connection| prove(connection, &store.keyring))
        .map_err(StoreError::from)
}

async fn prove(connection: &mut PgConnection, keyring: &Keyring) -> Result<CheckReport, Fault> {
    sqlx::raw_sql(NO_TIMEOUT).execute(&mut *connection).await?;
    let row = sqlx::query(COUNTS).persistent(false).fetch_one(&mut *connection).await?;
    let mut report = CheckReport {
        events: row.try_get("events")?,
        live: row.try_get("live")?,
        settled: row.try_get("settled")?,
        dead: row.try_get("dead")?,
        findings: Vec::new(),
    };
    for rule in RULES {
        report.findings.extend(rule.find(connection).await?);
    }
    let closed = endpoints::sealed(connection, keyring).await?;
    report.findings.extend(closed.first().map(|example| Finding {
        invariant: "sealed",
        count: i64::try_from(closed.len()).unwrap_or(i64::MAX),
        text: format!(
            "{} endpoints with secrets or headers that this master key does not open, such as {example}",
            closed.len()
        ),
    }));
    Ok(report)
}
