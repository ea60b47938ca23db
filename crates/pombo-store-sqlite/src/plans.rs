//! How SQLite runs our statements: read out of the sources, so that none is forgotten.

use rusqlite::Connection;

/// Every file with statements.
const SOURCES: [&str; 15] = [
    include_str!("accept.rs"),
    include_str!("admin.rs"),
    include_str!("audit.rs"),
    include_str!("check.rs"),
    include_str!("claim.rs"),
    include_str!("endpoints.rs"),
    include_str!("endpoints/secrets.rs"),
    include_str!("endpoints/stored.rs"),
    include_str!("flush.rs"),
    include_str!("migrate.rs"),
    include_str!("outbox.rs"),
    include_str!("parking.rs"),
    include_str!("people.rs"),
    include_str!("reading.rs"),
    include_str!("sessions.rs"),
];

/// Tables that grow with traffic.
const GROWING: [&str; 8] = [
    "pombo_attempt",
    "pombo_dead_letter",
    "pombo_delivery",
    "pombo_event",
    "pombo_event_key",
    "pombo_outbox",
    "pombo_audit",
    "pombo_tenant",
];

/// Statements that may walk through a growing table, and why.
const MAY_SCAN: [(&str, &str); 15] = [
    ("owned", "the audit of S6: live rows only, on a reader, every 10 s; an index on the owner costs more"),
    ("owned_by_the_dead", "the sweep of S4: as above"),
    ("forgettable_sessions", "once an hour, on a reader"),
    ("rows_of_deleted", "the sweep of P3: live rows only, on a reader"),
    ("rows_of_one_deleted", "a deletion's chunk: live rows only, on a reader"),
    ("sample_live", "live rows only, on a reader"),
    ("sample_outbox", "counts rows that wait, on a reader"),
    ("sample_outbox_oldest", "reads the first row"),
    ("sample_dead_letters", "counts an index, on a reader"),
    ("sample_oldest_due", "reads the first entry of the index"),
    ("rejected_rows", "reads the newest rows of its own table"),
    ("check_events", "check reads everything"),
    ("check_live", "check reads everything"),
    ("check_settled", "check reads everything"),
    ("check_dead", "check reads everything"),
];

/// The statements of a source, by name. Those put together at run time are left out.
fn statements(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in source.split("\"-- pombo:").skip(1) {
        let literal = part.split('"').next().expect("a literal ends");
        if literal.contains('{') {
            continue;
        }
        let mut text = String::new();
        for line in literal.split("\\\n") {
            text.push_str(&line.trim_start().replace("\\n", "\n"));
        }
        let (name, sql) = text.split_once('\n').expect("a statement stands below its name");
        found.push((name.trim().to_owned(), sql.to_owned()));
    }
    found
}

fn database() -> Connection {
    let connection = Connection::open_in_memory().expect("SQLite opens");
    connection.execute_batch(include_str!("migrations/0001_walk.sql")).expect("the schema is made");
    let version =
        "CREATE TABLE pombo_schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)";
    connection.execute_batch(version).expect("the version table is made");
    connection
}

fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = statement.parameter_count();
    let nulls = vec![rusqlite::types::Value::Null; count];
    let lines =
        statement.query_map(rusqlite::params_from_iter(nulls), |row| row.get(3)).expect("it is explained");
    lines.collect::<Result<_, _>>().expect("it is explained")
}

#[test]
fn no_statement_of_the_walk_scans_or_sorts_a_growing_table() {
    let connection = database();
    let all: Vec<_> = SOURCES.iter().flat_map(|source| statements(source)).collect();
    assert!(all.len() > 70, "the sources are read: {}", all.len());
    let mut scanning = Vec::new();
    for (name, sql) in &all {
        if sql.starts_with("CREATE") {
            continue;
        }
        for line in plan(&connection, sql) {
            let scans = line.strip_prefix("SCAN ").is_some_and(|rest| {
                let table = rest.split(' ').next().expect("a table");
                // Single letters are our aliases; those scans are looked at by the name of their index.
                GROWING.contains(&table) || (table.len() == 1 && !rest.contains("USING"))
            });
            if scans || line.contains("TEMP B-TREE") {
                scanning.push((name.clone(), line));
            }
        }
    }
    assert!(scanning.iter().any(|(name, _)| name == "owned"), "a scan is seen where there is one");
    scanning.retain(|(name, _)| MAY_SCAN.iter().all(|(allowed, _)| allowed != name));
    assert!(scanning.is_empty(), "{scanning:#?}");
}

#[test]
fn every_allowed_scan_is_a_statement() {
    let all: Vec<_> = SOURCES.iter().flat_map(|source| statements(source)).map(|(name, _)| name).collect();
    for (name, reason) in MAY_SCAN {
        assert!(all.iter().any(|other| other == name), "{name} ({reason}) is gone");
    }
}

#[test]
fn a_claim_finds_the_due_through_their_index() {
    let connection = database();
    let lines = plan(&connection, crate::claim::DUE.split_once('\n').expect("a named statement").1);
    assert_eq!(lines, ["SEARCH pombo_delivery USING INDEX pombo_delivery_due (due_at>? AND due_at<?)"]);
}
