//! Every bound in one place. Units are in the names; the sources are the API reference and docs/protocol.md.

use std::time::Duration;

/// Largest `data` of one event, and largest raw payload (1 MiB).
pub const EVENT_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Largest request body of `POST /v1/events`: the payload may be base64, and the rest of the document is small.
pub const EVENT_REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Largest request body of `POST /v1/events/batch`.
pub const BATCH_REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest request body of every other call.
pub const REQUEST_BYTES_MAX: usize = 256 * 1024;
/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 1000;
/// Deepest nesting of JSON given as `data`.
pub const JSON_DEPTH_MAX: usize = 128;
/// Longest client id, ordering key and external id, in bytes.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest tenant name and event type, in characters.
pub const NAME_CHARS_MAX: usize = 128;
/// Most endpoints named by `endpoints` of one event.
pub const TARGETS_MAX: usize = 100;
/// Most event type patterns of an endpoint.
pub const PATTERNS_MAX: usize = 100;
/// Longest URL of an endpoint, in bytes of its serialised form.
pub const URL_BYTES_MAX: usize = 2048;
/// Most custom headers of an endpoint.
pub const HEADERS_MAX: usize = 20;
/// Longest value of a custom header.
pub const HEADER_VALUE_BYTES_MAX: usize = 4096;
/// Longest description of an endpoint.
pub const DESCRIPTION_BYTES_MAX: usize = 1024;
/// Largest metadata of an endpoint, as JSON.
pub const METADATA_BYTES_MAX: usize = 4096;
/// Longest reason a person gives for an act.
pub const REASON_BYTES_MAX: usize = 1024;
/// Shortest deadline of an attempt.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Longest deadline of an attempt.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// Deadline of an attempt where nothing else is set.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Attempts in flight to one endpoint where nothing else is set.
pub const CONCURRENCY_DEFAULT: u16 = 8;
/// Most attempts in flight to one endpoint.
pub const CONCURRENCY_MAX: u16 = 256;
/// Most entries of a retry schedule.
pub const SCHEDULE_MAX: usize = 50;
/// Longest delay between two attempts.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most attempts of an exponential policy.
pub const EXPONENTIAL_ATTEMPTS_MAX: u16 = 50;
/// Longest `Retry-After` that is honoured.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Furthest `deliverAt`.
pub const DELIVER_AT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a caller's own id is remembered.
pub const CLIENT_KEY_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes of a response that are read and, by `storeResponses`, kept.
pub const RESPONSE_BYTES_MAX: usize = 8 * 1024;
/// Longest message of an attempt's failure that is kept.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Overlap of the old and the new secret where nothing else is set.
pub const SECRET_OVERLAP_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// Longest overlap of the old and the new secret.
pub const SECRET_OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Items of a page where nothing else is asked.
pub const PAGE_DEFAULT: u16 = 50;
/// Most items of a page.
pub const PAGE_MAX: u16 = 250;

/// Lease of a session (docs/protocol.md S1).
pub const LEASE_TTL_DEFAULT: Duration = Duration::from_secs(45);
/// What a lease must have left beyond the deadline of the longest attempt (K3).
pub const LEASE_HEADROOM: Duration = Duration::from_secs(7);
/// What a lease must have left beyond the deadline of one attempt when it starts (K3).
pub const LEASE_CHECK_MARGIN: Duration = Duration::from_secs(2);
/// Rescues without a recorded attempt after which a delivery is sent alone (S4).
pub const RESCUES_ALONE: u16 = 5;
/// Rescues without a recorded attempt after which a delivery is dead with class `interrupted` (S4).
pub const RESCUES_DEAD: u16 = 8;
/// Attempts in flight and results not yet written above which no attempt starts (K4).
pub const UNSETTLED_MAX: usize = 2000;
/// Age of the oldest unwritten result above which no attempt starts (K4).
pub const UNFLUSHED_AGE_MAX: Duration = Duration::from_secs(1);
/// Most deliveries inserted by one accept (A6).
pub const ACCEPT_DELIVERIES_MAX: usize = 5000;
/// Bodies kept in memory for lanes, in bytes (L1).
pub const LANE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Least room of a lane, in deliveries (L1).
pub const LANE_ROOM_MIN: usize = 32;
/// Jobs ready to be sent above which accepts are held for a moment (A7; measured: e2e 28 instead of 45 ms at
/// 512 clients, same throughput).
pub const READY_MAX: usize = 256;
/// Longest moment an accept is held (A7).
pub const ACCEPT_HOLD_MAX: Duration = Duration::from_millis(50);
/// Most events of one accept transaction.
pub const ACCEPT_EVENTS_MAX: usize = 512;
/// Most results of one flush.
pub const FLUSH_ITEMS_MAX: usize = 512;
/// Most rows of one claim.
pub const CLAIM_ROWS_MAX: u32 = 512;
/// Most rows of one relay transaction.
pub const RELAY_ROWS_MAX: u32 = 500;
/// Most bytes of `data` of one relay transaction.
pub const RELAY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Rows released, cancelled or woken by one statement of the sweep.
pub const SWEEP_ROWS_MAX: u32 = 1000;
/// Number of shards that endpoints hash to (C3).
pub const SHARDS: u16 = 256;
