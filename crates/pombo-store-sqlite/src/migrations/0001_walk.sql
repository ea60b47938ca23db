-- The first schema. Frozen once released.
--
-- Times are whole microseconds since 1970 (UTC); 9223372036854775807 stands for "infinity". Ids are the 16
-- bytes of a uuid. Tables are not STRICT and defaults use only functions that SQLite had before 3.38, so that
-- an application with an older library can open the file it shares with us.

-- One row: which configuration everything was matched against, and who may run on this database.
CREATE TABLE pombo_config (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    version     INTEGER NOT NULL,           -- grows with every change of an endpoint (A3)
    min_binary  INTEGER NOT NULL,           -- oldest schema version whose binary may still run here (T9)
    environment TEXT                        -- name of the installation; set at the first start
);
INSERT INTO pombo_config (one, version, min_binary) VALUES (1, 1, 1);

-- Counters that must never give a number twice. `delivery` is the accepted order of deliveries.
CREATE TABLE pombo_counter (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL                  -- the last number given
) WITHOUT ROWID;
INSERT INTO pombo_counter (name, value) VALUES ('delivery', 0);

CREATE TABLE pombo_tenant (
    id         BLOB PRIMARY KEY,            -- uuid v5 of the name
    name       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Runs of the process that own deliveries (S). AUTOINCREMENT: an id is never used twice (S1).
CREATE TABLE pombo_session (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    node       TEXT NOT NULL,               -- host and process, for people
    api        INTEGER NOT NULL CHECK (api IN (0, 1)),
    relay      INTEGER NOT NULL CHECK (relay IN (0, 1)),
    deliver    INTEGER NOT NULL CHECK (deliver IN (0, 1)),
    draining   INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
    state      TEXT NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'dead')),
    opened_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    died_at    INTEGER CHECK ((died_at IS NOT NULL) = (state = 'dead'))
);
-- live -> dead only.
CREATE TRIGGER pombo_session_stays_dead BEFORE UPDATE OF state ON pombo_session
WHEN OLD.state = 'dead' AND NEW.state <> 'dead'
BEGIN
    SELECT RAISE(ABORT, 'a dead session stays dead');
END;

-- Work that one process at a time does (R3). `epoch` grows with every take-over.
CREATE TABLE pombo_lease (
    name   TEXT PRIMARY KEY,
    holder INTEGER NOT NULL,                -- a session
    epoch  INTEGER NOT NULL
) WITHOUT ROWID;

-- What happened; append-only.
CREATE TABLE pombo_event (
    id               BLOB PRIMARY KEY,      -- the `webhook-id` of every attempt
    tenant_id        BLOB NOT NULL,
    type             TEXT NOT NULL,
    body             BLOB NOT NULL,         -- the exact bytes that are signed and sent
    content_type     TEXT NOT NULL,
    client_key       TEXT,                  -- the caller's own id
    ordering_key     TEXT,
    resource_version INTEGER,
    origin           TEXT NOT NULL CHECK (origin IN ('api', 'outbox', 'pombo')),
    fanout           INTEGER NOT NULL,      -- number of deliveries it was given
    targets          TEXT,                  -- JSON list of the endpoint uuids it named
    deliver_at       INTEGER,
    created_at       INTEGER NOT NULL
);
CREATE INDEX pombo_event_by_time ON pombo_event (created_at, id);
CREATE INDEX pombo_event_by_tenant ON pombo_event (tenant_id, created_at, id);
CREATE INDEX pombo_event_unmatched ON pombo_event (created_at, id) WHERE fanout = 0;

-- The callers' own ids, while they are remembered (A4).
CREATE TABLE pombo_event_key (
    tenant_id    BLOB NOT NULL,
    key          TEXT NOT NULL,
    event_id     BLOB NOT NULL,
    event_at     INTEGER NOT NULL,
    content_hash BLOB NOT NULL,             -- SHA-256 over all the caller gave
    expires_at   INTEGER NOT NULL,          -- from then on another event may take the key over
    PRIMARY KEY (tenant_id, key)
) WITHOUT ROWID;

-- Live deliveries only. owner set: a session sends it. due_at set: it waits, for ever where parked.
CREATE TABLE pombo_delivery (
    id           BLOB PRIMARY KEY,          -- leads with the event's millisecond; derived from event and endpoint
    event_id     BLOB NOT NULL,
    event_at     INTEGER NOT NULL,
    endpoint_id  BLOB NOT NULL,
    tenant_id    BLOB NOT NULL,
    type         TEXT NOT NULL,
    shard        INTEGER NOT NULL,
    seq          INTEGER NOT NULL,          -- accepted order
    owner        INTEGER,                   -- a session
    gen          INTEGER NOT NULL,          -- third part of the token (K1)
    attempt      INTEGER NOT NULL,          -- attempts recorded in this run
    rescues      INTEGER NOT NULL,          -- releases since the last recorded attempt (S4)
    due_at       INTEGER,
    not_before   INTEGER,                   -- what a parked or manually claimed row waits for
    ordering_key TEXT,
    last_status  INTEGER,
    last_class   TEXT,
    last_at      INTEGER,                   -- started_at of the last attempt
    created_at   INTEGER NOT NULL,
    CHECK ((owner IS NULL) = (due_at IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX pombo_delivery_due ON pombo_delivery (due_at) WHERE due_at < 9223372036854775807;
CREATE INDEX pombo_delivery_parked ON pombo_delivery (endpoint_id, seq) WHERE due_at = 9223372036854775807;

-- History; append-only. The attempt that settles a delivery is its final record.
CREATE TABLE pombo_attempt (
    delivery_id         BLOB NOT NULL,
    started_at          INTEGER NOT NULL,
    event_id            BLOB NOT NULL,
    event_at            INTEGER NOT NULL,
    endpoint_id         BLOB NOT NULL,
    tenant_id           BLOB NOT NULL,
    type                TEXT NOT NULL,
    n                   INTEGER NOT NULL,   -- within its run, from 1; 0 for a cancellation
    gen                 INTEGER NOT NULL,
    status              INTEGER,
    class               TEXT,               -- NULL for a cancellation
    message             TEXT,
    duration            INTEGER NOT NULL,   -- microseconds
    dns                 INTEGER,            -- microseconds, as the next four
    connect             INTEGER,
    tls                 INTEGER,
    first_byte          INTEGER,
    read                INTEGER,
    response            BLOB,
    response_truncated  INTEGER NOT NULL CHECK (response_truncated IN (0, 1)),
    settles             TEXT CHECK (settles IN ('delivered', 'dead', 'cancelled')),
    late                INTEGER NOT NULL CHECK (late IN (0, 1)),
    manual              INTEGER NOT NULL CHECK (manual IN (0, 1)),
    retryable           INTEGER NOT NULL CHECK (retryable IN (0, 1)),
    session             INTEGER NOT NULL,   -- who made it; 0 for a cancellation
    delivery_created_at INTEGER NOT NULL,
    PRIMARY KEY (delivery_id, started_at)
) WITHOUT ROWID;
CREATE INDEX pombo_attempt_settled_by_endpoint ON pombo_attempt (endpoint_id, delivery_id)
    WHERE settles IS NOT NULL;
CREATE INDEX pombo_attempt_settled_by_tenant ON pombo_attempt (tenant_id, delivery_id)
    WHERE settles IS NOT NULL;
CREATE INDEX pombo_attempt_cancelled ON pombo_attempt (delivery_id) WHERE settles = 'cancelled';

-- Deliveries whose last settlement is dead.
CREATE TABLE pombo_dead_letter (
    delivery_id BLOB PRIMARY KEY,
    event_id    BLOB NOT NULL,
    event_at    INTEGER NOT NULL,
    endpoint_id BLOB NOT NULL,
    tenant_id   BLOB NOT NULL,
    type        TEXT NOT NULL,
    died_at     INTEGER NOT NULL,
    attempt_at  INTEGER NOT NULL,           -- started_at of the attempt that settled it
    class       TEXT NOT NULL,
    status      INTEGER,
    gen         INTEGER NOT NULL,
    seq         INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX pombo_dead_letter_by_time ON pombo_dead_letter (died_at, delivery_id);
CREATE INDEX pombo_dead_letter_by_tenant ON pombo_dead_letter (tenant_id, died_at, delivery_id);
CREATE INDEX pombo_dead_letter_by_endpoint ON pombo_dead_letter (endpoint_id, died_at, delivery_id);

CREATE TABLE pombo_endpoint (
    id                  BLOB PRIMARY KEY,
    tenant_id           BLOB NOT NULL,
    url                 TEXT NOT NULL,
    description         TEXT,
    event_types         TEXT,               -- JSON list of patterns; NULL for every type
    headers             BLOB,               -- sealed JSON list of [name, value]; NULL for none
    header_style        TEXT NOT NULL CHECK (header_style IN ('standard', 'x-webhook', 'both')),
    retry               TEXT,               -- JSON of the policy; NULL for the installation's
    timeout             INTEGER,            -- microseconds; NULL for the installation's
    max_concurrency     INTEGER NOT NULL,
    ordered             INTEGER NOT NULL DEFAULT 0 CHECK (ordered IN (0, 1)), -- one at a time per ordering key
    on_dead             TEXT NOT NULL DEFAULT 'skip' CHECK (on_dead IN ('skip', 'block')), -- of an ordered key
    retry_client_errors INTEGER NOT NULL CHECK (retry_client_errors IN (0, 1)),
    store_responses     TEXT NOT NULL CHECK (store_responses IN ('failures', 'all', 'none')),
    metadata            TEXT NOT NULL,      -- a JSON object
    status              TEXT NOT NULL CHECK (status IN ('active', 'paused', 'disabled')),
    disabled_reason     TEXT CHECK ((disabled_reason IS NOT NULL) = (status = 'disabled')),
    version             INTEGER NOT NULL,   -- pombo_config.version of its last change
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    deleted_at          INTEGER             -- its live deliveries are being cancelled (P3)
) WITHOUT ROWID;
CREATE INDEX pombo_endpoint_by_version ON pombo_endpoint (version);
CREATE INDEX pombo_endpoint_by_time ON pombo_endpoint (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX pombo_endpoint_by_tenant ON pombo_endpoint (tenant_id, created_at, id) WHERE deleted_at IS NULL;

-- What moves by itself.
CREATE TABLE pombo_endpoint_state (
    endpoint_id      BLOB PRIMARY KEY,
    circuit          TEXT NOT NULL DEFAULT 'closed' CHECK (circuit IN ('closed', 'open')),
    circuit_until    INTEGER,               -- when an open circuit sends its next probe
    slow_start       INTEGER NOT NULL DEFAULT 0 CHECK (slow_start >= 0), -- may wake at once; 0: no limit
    hold_until       INTEGER,               -- no attempt before (Retry-After)
    first_failure_at INTEGER,               -- begin of the present run of failures
    failures_in_row  INTEGER NOT NULL DEFAULT 0 CHECK (failures_in_row >= 0),
    dead_in_row      INTEGER NOT NULL DEFAULT 0 CHECK (dead_in_row >= 0),
    CHECK ((circuit = 'open') = (circuit_until IS NOT NULL))
) WITHOUT ROWID;

CREATE TABLE pombo_secret (
    endpoint_id BLOB NOT NULL,
    n           INTEGER NOT NULL,           -- the largest is the current one
    sealed      BLOB NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,                    -- NULL for the current one
    PRIMARY KEY (endpoint_id, n)
) WITHOUT ROWID;

CREATE TABLE pombo_api_key (
    id         BLOB PRIMARY KEY,
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,        -- SHA-256 of the key's text
    admin      INTEGER NOT NULL CHECK (admin IN (0, 1)),
    publish    INTEGER NOT NULL CHECK (publish IN (0, 1)),
    read       INTEGER NOT NULL CHECK (read IN (0, 1)),
    tenant_id  BLOB,                        -- NULL for all tenants
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE pombo_audit (
    id        BLOB PRIMARY KEY,
    at        INTEGER NOT NULL,
    actor     TEXT NOT NULL,
    action    TEXT NOT NULL,
    subject   TEXT NOT NULL,                -- the id of the thing, as shown
    tenant_id BLOB,
    reason    TEXT
) WITHOUT ROWID;
CREATE INDEX pombo_audit_by_time ON pombo_audit (at, id);
CREATE INDEX pombo_audit_by_tenant ON pombo_audit (tenant_id, at, id);

-- Written by applications: INSERT INTO pombo_outbox (tenant, type, data) VALUES (…) is enough.
CREATE TABLE pombo_outbox (
    -- Made by SQLite. One that is not positive would never be looked at, and the largest would be the last row ever.
    seq              INTEGER PRIMARY KEY AUTOINCREMENT CHECK (seq BETWEEN 1 AND 9007199254740991),
    -- The event's id, the `webhook-id` of every attempt: a uuid as text (or its 16 bytes).
    id               TEXT NOT NULL UNIQUE DEFAULT (lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
        || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    tenant           TEXT NOT NULL DEFAULT 'default',
    type             TEXT NOT NULL,
    data             TEXT NOT NULL,         -- JSON, sent byte for byte; with a content_type anything
    ordering_key     TEXT,
    key              TEXT,                  -- your own id; repeated within 7 days it is one event
    resource_version INTEGER,
    deliver_at,                             -- not before: RFC 3339 text, or microseconds since 1970
    endpoint_id      TEXT,                  -- only this endpoint
    content_type     TEXT,                  -- send `data` raw under this content type
    headers          TEXT CHECK (headers IS NULL), -- kept for later
    created_at NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)
);

-- Rows that cannot become events, as they were written, with the reason. They can be put back.
CREATE TABLE pombo_outbox_rejected (
    n                INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id         BLOB NOT NULL,         -- the id the event would have had
    reason           TEXT NOT NULL,         -- a word of a closed set
    detail           TEXT NOT NULL,         -- for people
    rejected_at      INTEGER NOT NULL,
    seq              INTEGER NOT NULL,      -- from here on the columns of pombo_outbox
    id,
    tenant,
    type,
    data,
    ordering_key,
    key,
    resource_version,
    deliver_at,
    endpoint_id,
    content_type,
    created_at
);
