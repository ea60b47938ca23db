-- The outbound walk (docs/protocol.md, tables T1-T10). Runs inside one transaction under the migration lock.
-- Instants are timestamptz by this server's clock; ids are bare uuids.

-- Configuration -------------------------------------------------------------------------------------------------

CREATE TABLE pombo.config (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    version     bigint  NOT NULL DEFAULT 1 CHECK (version > 0),
    min_binary  integer NOT NULL,
    environment text
);
COMMENT ON TABLE pombo.config IS 'One row: what holds for the whole installation.';
COMMENT ON COLUMN pombo.config.version IS 'Grows with every change of endpoints or secrets (A3).';
COMMENT ON COLUMN pombo.config.min_binary IS 'Smallest schema number a binary must know to run here (T9).';
COMMENT ON COLUMN pombo.config.environment IS 'Where this database belongs; a copy elsewhere must not send.';
INSERT INTO pombo.config (min_binary) VALUES (1);

CREATE TABLE pombo.tenant (
    id         uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9_.:@-]{1,128}$'),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pombo.tenant IS 'Owners of endpoints.';
COMMENT ON COLUMN pombo.tenant.id IS 'uuid version 5 of the name.';

CREATE TABLE pombo.endpoint (
    id                  uuid PRIMARY KEY,
    tenant_id           uuid NOT NULL REFERENCES pombo.tenant,
    url                 text NOT NULL,
    description         text,
    event_types         text[] CHECK (cardinality(event_types) > 0),
    header_names        text[] NOT NULL,
    header_values       bytea[] NOT NULL,
    header_style        text NOT NULL CHECK (header_style IN ('standard', 'x-webhook', 'both')),
    retry               json,
    timeout_ms          integer CHECK (timeout_ms > 0),
    max_concurrency     smallint NOT NULL CHECK (max_concurrency > 0),
    ordered             boolean NOT NULL DEFAULT false,
    on_dead             text NOT NULL DEFAULT 'skip' CHECK (on_dead IN ('skip', 'block')),
    retry_client_errors boolean NOT NULL,
    store_responses     text NOT NULL CHECK (store_responses IN ('failures', 'all', 'none')),
    metadata            json NOT NULL,
    status              text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'disabled')),
    disabled_reason     text CHECK (disabled_reason IN ('gone', 'person')),
    version             bigint NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at          timestamptz,
    CONSTRAINT endpoint_headers_paired CHECK (cardinality(header_names) = cardinality(header_values)),
    CONSTRAINT endpoint_reason_when_disabled CHECK ((status = 'disabled') = (disabled_reason IS NOT NULL))
);
CREATE INDEX endpoint_by_tenant ON pombo.endpoint (tenant_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX endpoint_by_age ON pombo.endpoint (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX endpoint_by_version ON pombo.endpoint (version);
COMMENT ON TABLE pombo.endpoint IS 'Where events go. Deleted ones stay, marked, so that other processes learn of it (P3).';
COMMENT ON COLUMN pombo.endpoint.ordered IS 'One delivery at a time per ordering key, in accepted order.';
COMMENT ON COLUMN pombo.endpoint.on_dead IS 'What a dead delivery does to its ordering key: skip it, or block the key.';
COMMENT ON COLUMN pombo.endpoint.event_types IS 'Patterns subscribed to; NULL: every type of the application.';
COMMENT ON COLUMN pombo.endpoint.header_values IS 'Sealed, bound to the endpoint''s id; same order as header_names.';
COMMENT ON COLUMN pombo.endpoint.retry IS 'Retry policy as in the API reference; NULL: the installation''s.';
COMMENT ON COLUMN pombo.endpoint.timeout_ms IS 'Deadline of an attempt in milliseconds; NULL: the installation''s.';
COMMENT ON COLUMN pombo.endpoint.version IS 'config.version at its last change (A3).';

CREATE TABLE pombo.endpoint_state (
    endpoint_id      uuid PRIMARY KEY REFERENCES pombo.endpoint,
    circuit          text NOT NULL DEFAULT 'closed' CHECK (circuit IN ('closed', 'open')),
    circuit_until    timestamptz,
    slow_start       integer NOT NULL DEFAULT 0 CHECK (slow_start >= 0),
    hold_until       timestamptz,
    first_failure_at timestamptz,
    failures_in_row  integer NOT NULL DEFAULT 0 CHECK (failures_in_row >= 0),
    dead_in_row      integer NOT NULL DEFAULT 0 CHECK (dead_in_row >= 0),
    CONSTRAINT endpoint_state_open_has_probe CHECK ((circuit = 'open') = (circuit_until IS NOT NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE pombo.endpoint_state IS 'What sending has learned about an endpoint; its row lock guards wake-ups (P1).';
COMMENT ON COLUMN pombo.endpoint_state.circuit_until IS 'When an open circuit sends its next probe.';
COMMENT ON COLUMN pombo.endpoint_state.slow_start IS 'Deliveries that may wake at once after an open circuit; 0: no limit.';
COMMENT ON COLUMN pombo.endpoint_state.hold_until IS 'End of the quiet a receiver asked for by Retry-After.';
COMMENT ON COLUMN pombo.endpoint_state.first_failure_at IS 'Begin of the present run of failures.';
COMMENT ON COLUMN pombo.endpoint_state.failures_in_row IS 'Failed attempts since the last success.';
COMMENT ON COLUMN pombo.endpoint_state.dead_in_row IS 'Dead deliveries since the last success.';

CREATE TABLE pombo.secret (
    endpoint_id uuid NOT NULL REFERENCES pombo.endpoint,
    n           integer NOT NULL CHECK (n > 0),
    sealed      bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz,
    PRIMARY KEY (endpoint_id, n)
);
CREATE UNIQUE INDEX secret_one_current ON pombo.secret (endpoint_id) WHERE expires_at IS NULL;
COMMENT ON TABLE pombo.secret IS 'Signing secrets, sealed.';
COMMENT ON COLUMN pombo.secret.n IS 'Counts the secrets of an endpoint; the seal is bound to endpoint and n.';
COMMENT ON COLUMN pombo.secret.expires_at IS 'Until when an older secret still signs; NULL: the current one.';

CREATE TABLE pombo.api_key (
    id            uuid PRIMARY KEY,
    name          text NOT NULL,
    hash          bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    scope_admin   boolean NOT NULL,
    scope_publish boolean NOT NULL,
    scope_read    boolean NOT NULL,
    tenant_id     uuid,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pombo.api_key IS 'Who may call the API.';
COMMENT ON COLUMN pombo.api_key.hash IS 'SHA-256 of the key; the key itself is nowhere.';
COMMENT ON COLUMN pombo.api_key.tenant_id IS 'The one tenant it is bound to; NULL: all.';

CREATE TABLE pombo.audit (
    id        uuid PRIMARY KEY,
    at        timestamptz NOT NULL,
    actor     text NOT NULL,
    action    text NOT NULL,
    subject   text NOT NULL,
    tenant_id uuid,
    reason    text
);
CREATE INDEX audit_by_age ON pombo.audit (at, id);
CREATE INDEX audit_by_tenant ON pombo.audit (tenant_id, at, id);
COMMENT ON TABLE pombo.audit IS 'Who did what, and why. Only appended to.';

-- Processes -----------------------------------------------------------------------------------------------------

CREATE TABLE pombo.session (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node       text NOT NULL,
    api        boolean NOT NULL,
    relay      boolean NOT NULL,
    deliver    boolean NOT NULL,
    state      text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'dead')),
    draining   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    died_at   timestamptz,
    CONSTRAINT session_dead_since CHECK ((state = 'dead') = (died_at IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE pombo.session IS 'Runs of processes that own deliveries. An id is never used twice; live to dead only (S1).';
COMMENT ON COLUMN pombo.session.expires_at IS 'End of the lease; nothing is released because of it alone (S3).';
COMMENT ON COLUMN pombo.session.draining IS 'Gets no more shards (S8).';

CREATE TABLE pombo.lease (
    name     text PRIMARY KEY,
    holder   integer NOT NULL,
    epoch    bigint NOT NULL DEFAULT 1,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pombo.lease IS 'Work that one process at a time does. Lasts as long as the holder''s session lives.';
COMMENT ON COLUMN pombo.lease.epoch IS 'Grows with every take-over; transactions of the holder lock the row FOR SHARE (R3).';

-- The outbox ----------------------------------------------------------------------------------------------------

CREATE TABLE pombo.outbox (
    seq              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY CHECK (seq > 0),
    id               uuid NOT NULL DEFAULT gen_random_uuid(),
    tenant           text NOT NULL DEFAULT 'default',
    type             text NOT NULL,
    data             text NOT NULL,
    ordering_key     text,
    key              text,
    resource_version bigint,
    deliver_at       timestamptz,
    endpoint_id      text,
    content_type     text,
    headers          json,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
COMMENT ON TABLE pombo.outbox IS 'Written by applications in their own transactions; Pombo takes the rows away (T1, R1).';
COMMENT ON COLUMN pombo.outbox.seq IS 'Order of insertion, not of commit.';
COMMENT ON COLUMN pombo.outbox.id IS 'Becomes the event''s id.';
COMMENT ON COLUMN pombo.outbox.tenant IS 'Whose endpoints get it.';
COMMENT ON COLUMN pombo.outbox.type IS 'Event type, such as order.paid.v1.';
COMMENT ON COLUMN pombo.outbox.data IS 'JSON, kept byte for byte; with content_type: sent raw as it stands.';
COMMENT ON COLUMN pombo.outbox.key IS 'The application''s own id of the event, unique per tenant for 7 days.';
COMMENT ON COLUMN pombo.outbox.resource_version IS 'A counter by which receivers drop what is older, 0 to 2^53-1.';
COMMENT ON COLUMN pombo.outbox.deliver_at IS 'Not before this instant, at most 30 days ahead.';
COMMENT ON COLUMN pombo.outbox.endpoint_id IS 'Only this endpoint (ep_…, or its uuid).';
COMMENT ON COLUMN pombo.outbox.content_type IS 'Set: data is sent raw under this content type.';
COMMENT ON COLUMN pombo.outbox.headers IS 'Only traceparent and tracestate.';

CREATE TABLE pombo.outbox_rejected (
    seq              bigint PRIMARY KEY,
    id               uuid NOT NULL,
    tenant           text NOT NULL,
    type             text NOT NULL,
    data             text NOT NULL,
    ordering_key     text,
    key              text,
    resource_version bigint,
    deliver_at       timestamptz,
    endpoint_id      text,
    content_type     text,
    headers          json,
    created_at       timestamptz NOT NULL,
    reason           text NOT NULL,
    detail           text NOT NULL,
    rejected_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_rejected_by_age ON pombo.outbox_rejected (rejected_at, seq);
COMMENT ON TABLE pombo.outbox_rejected IS 'Rows of the outbox that cannot become events: never lost, never in the way.';
COMMENT ON COLUMN pombo.outbox_rejected.seq IS 'The row''s number in the outbox.';
COMMENT ON COLUMN pombo.outbox_rejected.reason IS 'One word of a closed set.';
COMMENT ON COLUMN pombo.outbox_rejected.detail IS 'What is wrong, for people; never the data.';

-- Events and deliveries -----------------------------------------------------------------------------------------

CREATE TABLE pombo.event (
    id               uuid NOT NULL,
    tenant_id        uuid NOT NULL,
    type             text NOT NULL,
    body             bytea NOT NULL,
    content_type     text NOT NULL,
    client_key       text,
    ordering_key     text,
    resource_version bigint,
    origin           text NOT NULL CHECK (origin IN ('api', 'outbox', 'pombo')),
    fanout           integer NOT NULL CHECK (fanout >= 0),
    targets          uuid[],
    deliver_at       timestamptz,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX event_by_age ON pombo.event (created_at, id);
CREATE INDEX event_by_tenant ON pombo.event (tenant_id, created_at, id);
COMMENT ON TABLE pombo.event IS 'What happened. Only appended to, one partition per day (UTC), dropped and not deleted (T7).';
COMMENT ON COLUMN pombo.event.body IS 'The exact bytes that are signed and sent.';
COMMENT ON COLUMN pombo.event.client_key IS 'The caller''s own id; whether it is still remembered stands in event_key.';
COMMENT ON COLUMN pombo.event.fanout IS 'How many deliveries were made with it.';
COMMENT ON COLUMN pombo.event.targets IS 'Endpoints it named; NULL: all that subscribe.';

CREATE TABLE pombo.event_key (
    tenant_id    uuid NOT NULL,
    key          text NOT NULL,
    event_id     uuid NOT NULL,
    event_at     timestamptz NOT NULL,
    content_hash bytea NOT NULL CHECK (octet_length(content_hash) = 32),
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
COMMENT ON TABLE pombo.event_key IS 'The callers'' own ids. A table of its own: a unique index on event would hold the day too (T2).';
COMMENT ON COLUMN pombo.event_key.event_at IS 'created_at of the event.';
COMMENT ON COLUMN pombo.event_key.content_hash IS 'SHA-256 over all that the caller gave.';
COMMENT ON COLUMN pombo.event_key.expires_at IS 'From then on the next event with this key takes the row over.';

CREATE SEQUENCE pombo.delivery_seq;

CREATE TABLE pombo.delivery (
    id           uuid PRIMARY KEY,
    event_id     uuid NOT NULL,
    event_at     timestamptz NOT NULL,
    endpoint_id  uuid NOT NULL,
    tenant_id    uuid NOT NULL,
    type         text NOT NULL,
    shard        smallint NOT NULL CHECK (shard BETWEEN 0 AND 255),
    seq          bigint NOT NULL,
    owner        integer,
    gen          integer NOT NULL CHECK (gen > 0),
    attempt      smallint NOT NULL CHECK (attempt >= 0),
    rescues      smallint NOT NULL CHECK (rescues >= 0),
    due_at       timestamptz,
    not_before   timestamptz,
    ordering_key text,
    last_at      timestamptz,
    last_status  smallint,
    last_class   text,
    CONSTRAINT delivery_owned_or_waiting CHECK ((owner IS NULL) = (due_at IS NOT NULL))
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
CREATE INDEX delivery_due ON pombo.delivery (due_at) WHERE due_at < 'infinity';
CREATE INDEX delivery_parked ON pombo.delivery (endpoint_id, seq) WHERE due_at = 'infinity';
COMMENT ON TABLE pombo.delivery IS 'Live deliveries only: one event to one endpoint, until it is settled (T3).';
COMMENT ON COLUMN pombo.delivery.id IS 'Derived from event and endpoint; leads with the event''s millisecond.';
COMMENT ON COLUMN pombo.delivery.event_at IS 'created_at of the event, and of the delivery.';
COMMENT ON COLUMN pombo.delivery.seq IS 'Accepted order. Ids order nothing.';
COMMENT ON COLUMN pombo.delivery.owner IS 'The session that sends it.';
COMMENT ON COLUMN pombo.delivery.gen IS 'Grows with every change of hands; id, owner and gen are the token (K1).';
COMMENT ON COLUMN pombo.delivery.attempt IS 'Attempts made in this run.';
COMMENT ON COLUMN pombo.delivery.rescues IS 'Releases from dead sessions since the last recorded attempt (S4).';
COMMENT ON COLUMN pombo.delivery.due_at IS 'NULL: owned. A time: waiting. infinity: parked.';
COMMENT ON COLUMN pombo.delivery.not_before IS 'What a parked or manually claimed row waits for.';
COMMENT ON COLUMN pombo.delivery.last_at IS 'started_at of its last attempt.';

CREATE TABLE pombo.attempt (
    delivery_id         uuid NOT NULL,
    started_at          timestamptz NOT NULL,
    event_id            uuid NOT NULL,
    event_at            timestamptz NOT NULL,
    endpoint_id         uuid NOT NULL,
    tenant_id           uuid NOT NULL,
    type                text NOT NULL,
    n                   smallint NOT NULL CHECK (n >= 0),
    gen                 integer NOT NULL,
    status              smallint,
    class               text,
    message             text,
    duration_us         bigint NOT NULL,
    dns_us              bigint,
    connect_us          bigint,
    tls_us              bigint,
    first_byte_us       bigint,
    body_us             bigint,
    response_body       bytea,
    response_truncated  boolean NOT NULL,
    settles             text CHECK (settles IN ('delivered', 'dead', 'cancelled')),
    late                boolean NOT NULL,
    manual              boolean NOT NULL,
    retryable           boolean NOT NULL,
    session             integer NOT NULL,
    delivery_created_at timestamptz NOT NULL,
    CONSTRAINT attempt_class_unless_cancelled CHECK (class IS NOT NULL OR n = 0),
    PRIMARY KEY (delivery_id, started_at)
) PARTITION BY RANGE (started_at);
CREATE INDEX attempt_final_by_endpoint ON pombo.attempt (endpoint_id, delivery_id) WHERE settles IS NOT NULL;
CREATE INDEX attempt_final_by_tenant ON pombo.attempt (tenant_id, delivery_id) WHERE settles IS NOT NULL;
COMMENT ON TABLE pombo.attempt IS 'One HTTP request each. Only appended to, one partition per day (UTC) (T4, T7).';
COMMENT ON COLUMN pombo.attempt.n IS 'Number within its run, from 1; 0: a cancellation.';
COMMENT ON COLUMN pombo.attempt.gen IS 'Generation of the delivery it was made under.';
COMMENT ON COLUMN pombo.attempt.duration_us IS 'From start to end, in microseconds; so are the phases.';
COMMENT ON COLUMN pombo.attempt.response_body IS 'The first bytes of the answer, where they are kept.';
COMMENT ON COLUMN pombo.attempt.settles IS 'Set on the one row by which the delivery was removed from the live ones (K6).';
COMMENT ON COLUMN pombo.attempt.late IS 'Its result came after the delivery had moved on (K6).';
COMMENT ON COLUMN pombo.attempt.session IS 'The process that made it; 0: nobody, a cancellation.';
COMMENT ON COLUMN pombo.attempt.delivery_created_at IS 'created_at of the delivery.';

CREATE TABLE pombo.dead_letter (
    delivery_id uuid PRIMARY KEY,
    event_id    uuid NOT NULL,
    event_at    timestamptz NOT NULL,
    endpoint_id uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    type        text NOT NULL,
    died_at     timestamptz NOT NULL,
    class       text NOT NULL,
    status      smallint,
    gen         integer NOT NULL,
    seq         bigint NOT NULL
);
CREATE INDEX dead_letter_by_age ON pombo.dead_letter (died_at, delivery_id);
CREATE INDEX dead_letter_by_endpoint ON pombo.dead_letter (endpoint_id, died_at, delivery_id);
CREATE INDEX dead_letter_by_tenant ON pombo.dead_letter (tenant_id, died_at, delivery_id);
COMMENT ON TABLE pombo.dead_letter IS 'Deliveries that failed for good, until a person revives them (T5).';
COMMENT ON COLUMN pombo.dead_letter.gen IS 'Generation it died with; a revival goes on from there (M2).';
COMMENT ON COLUMN pombo.dead_letter.seq IS 'Its place in accepted order.';

CREATE TABLE pombo.kept_body (
    event_id     uuid PRIMARY KEY,
    event_at     timestamptz NOT NULL,
    tenant_id    uuid NOT NULL,
    body         bytea NOT NULL,
    content_type text NOT NULL
);
COMMENT ON TABLE pombo.kept_body IS 'Bodies still wanted when their day of history goes (T7).';

-- Publishing ----------------------------------------------------------------------------------------------------

CREATE FUNCTION pombo.publish(
    tenant text, type text, data text,
    ordering_key text DEFAULT NULL, key text DEFAULT NULL, resource_version bigint DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, endpoint_id text DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    INSERT INTO pombo.outbox (tenant, type, data, ordering_key, key, resource_version, deliver_at, endpoint_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id
$$;
COMMENT ON FUNCTION pombo.publish(text, text, text, text, text, bigint, timestamptz, text) IS
    'Publishes an event in the calling transaction; data is JSON and kept byte for byte. Returns the event''s id.';

CREATE FUNCTION pombo.publish(
    tenant text, type text, data json,
    ordering_key text DEFAULT NULL, key text DEFAULT NULL, resource_version bigint DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, endpoint_id text DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    INSERT INTO pombo.outbox (tenant, type, data, ordering_key, key, resource_version, deliver_at, endpoint_id)
    VALUES ($1, $2, $3::text, $4, $5, $6, $7, $8) RETURNING id
$$;
COMMENT ON FUNCTION pombo.publish(text, text, json, text, text, bigint, timestamptz, text) IS
    'Publishes an event in the calling transaction; json keeps its bytes. Returns the event''s id.';

CREATE FUNCTION pombo.publish(
    tenant text, type text, data jsonb,
    ordering_key text DEFAULT NULL, key text DEFAULT NULL, resource_version bigint DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, endpoint_id text DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    INSERT INTO pombo.outbox (tenant, type, data, ordering_key, key, resource_version, deliver_at, endpoint_id)
    VALUES ($1, $2, $3::text, $4, $5, $6, $7, $8) RETURNING id
$$;
COMMENT ON FUNCTION pombo.publish(text, text, jsonb, text, text, bigint, timestamptz, text) IS
    'Publishes an event in the calling transaction. jsonb does not keep the bytes it was given: white space, order of keys and doubled keys are gone before Pombo sees them. Returns the event''s id.';

CREATE FUNCTION pombo.publish(type text, data text) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT pombo.publish('default'::text, $1, $2)
$$;
CREATE FUNCTION pombo.publish(type text, data json) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT pombo.publish('default'::text, $1, $2)
$$;
CREATE FUNCTION pombo.publish(type text, data jsonb) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT pombo.publish('default'::text, $1, $2)
$$;
COMMENT ON FUNCTION pombo.publish(text, text) IS 'Publishes an event of the default tenant.';
COMMENT ON FUNCTION pombo.publish(text, json) IS 'Publishes an event of the default tenant; json keeps its bytes.';
COMMENT ON FUNCTION pombo.publish(text, jsonb) IS
    'Publishes an event of the default tenant; jsonb does not keep the bytes it was given.';
