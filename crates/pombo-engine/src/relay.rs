//! The relay: rows of the outbox become events (docs/protocol.md, rules R).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use pombo_domain::event::{Event, Identity, Origin};
use pombo_domain::id::SessionId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::accept::AcceptResult;
use pombo_store::outbox::{OutboxRow, Rejection, RelayPlan, RelayRequest, Relayed};
use pombo_store::sessions::LeaseName;

use crate::clock::BootTime;
use crate::plan::{Planner, Work, content_hash};
use crate::spine::{Patience, Quietly, Spine};

mod draft;
mod floor;
mod pace;

use draft::{Refusal, draft_of};
use floor::Floor;
use pace::Pace;

/// Pause between two looks while rows keep coming.
const BUSY: Duration = Duration::from_millis(8);
/// How long after the last row the relay stays busy.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Longest pause between two looks (C4).
const IDLE: Duration = Duration::from_millis(250);
/// How often the lease is looked at by who does not hold it.
const LEASE_EVERY: Duration = Duration::from_secs(1);
/// Runs until the engine drains.
pub(crate) async fn relay_loop(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    let mut relay = Relay::default();
    while !spine.is_draining() {
        pace::wait_for_room(&spine).await;
        let pause = match relay.step(&spine).await {
            Ok(pause) => {
                patience.reset();
                pause
            }
            Err(error) => {
                relay.lease = None;
                relay.floor.void();
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "The outbox cannot be relayed: {error}.");
                }
                patience.next()
            }
        };
        if !pause.is_zero() {
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = spine.drained() => {} }
        }
    }
}

struct Relay {
    /// Epoch of the lease, and the session that holds it.
    lease: Option<(SessionId, i64)>,
    floor: Floor,
    last_rows_at: Option<BootTime>,
    /// Rows of the next transaction: fewer after one that the database refused, until the row is found.
    limit: u32,
    /// The next row alone is what the database refuses: it is set aside.
    refuses_next: bool,
    pace: Pace,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            lease: None,
            floor: Floor::default(),
            last_rows_at: None,
            limit: limits::RELAY_ROWS_MAX,
            refuses_next: false,
            pace: Pace::default(),
        }
    }
}

impl Relay {
    /// One transaction, or one try for the lease. Returns how long to pause.
    async fn step(&mut self, spine: &Spine) -> Result<Duration, StoreError> {
        // One look at the session for all: what is born claimed must belong to whoever holds the lease.
        let Some(planner) = Planner::new(spine) else {
            self.lease = None;
            return Ok(LEASE_EVERY);
        };
        let epoch = match self.lease {
            Some((holder, epoch)) if holder == planner.session => epoch,
            _ => match spine.store.hold_lease(LeaseName::OwnOutbox, planner.session).await? {
                Some(epoch) => {
                    self.lease = Some((planner.session, epoch));
                    self.floor.void();
                    epoch
                }
                None => return Ok(LEASE_EVERY),
            },
        };
        if spine.take_relay_floor_void() {
            self.floor.void();
        }
        self.transaction(spine, &planner, epoch).await
    }

    async fn transaction(
        &mut self,
        spine: &Spine,
        planner: &Planner<'_>,
        lease_epoch: i64,
    ) -> Result<Duration, StoreError> {
        let scan = self.floor.next(BootTime::now());
        let may_ask = !scan.is_full && self.floor.is_settled();
        if may_ask && !spine.store.outbox_hint(scan.above).await? {
            return Ok(self.quiet_pause());
        }
        let request = RelayRequest {
            floor: scan.above,
            limit: self.limit.min(self.pace.rows(spine.lanes.quick_lanes())),
            bytes_max: limits::RELAY_BYTES_MAX,
            session: planner.session,
            lease_epoch,
            config_version: planner.catalog.version,
        };
        let mut batch = Batch { refuses_all: self.refuses_next, ..Batch::default() };
        let result = {
            let mut plan = |rows: &[OutboxRow]| batch.plan(planner, rows);
            spine.store.relay(request, &mut plan).await
        };
        match result {
            Ok(Relayed::Committed { taken, results, mark }) => {
                let is_short = batch.is_short(request, taken);
                self.pace.found(batch.crowded_out(spine));
                batch.committed(spine, results);
                let now = BootTime::now();
                self.last_rows_at = Some(now);
                self.floor.seen(mark, is_short, now);
                self.refuses_next = false;
                self.limit = self.limit.saturating_mul(2).min(limits::RELAY_ROWS_MAX);
                Ok(if is_short { BUSY } else { Duration::ZERO })
            }
            Ok(Relayed::Empty(mark)) => {
                batch.forget(spine);
                self.floor.seen(mark, true, BootTime::now());
                self.refuses_next = false;
                Ok(self.quiet_pause())
            }
            Ok(Relayed::Stale { config_version }) => {
                batch.forget(spine);
                spine.refresh_catalog(config_version).await?;
                Ok(Duration::ZERO)
            }
            Ok(Relayed::LeaseLost) => {
                batch.forget(spine);
                self.lease = None;
                Ok(LEASE_EVERY)
            }
            Err(StoreError::Rejected(cause)) => {
                tracing::warn!(error = %cause, "The database refuses what was made of {} rows of the outbox.", batch.rows);
                batch.forget(spine);
                self.narrow();
                Ok(BUSY)
            }
            Err(error) => {
                batch.forget(spine);
                Err(error)
            }
        }
    }

    /// One row that the database refuses, though it passed every check, must not stop the others: the next
    /// transactions take fewer rows until it is alone, and then set it aside.
    fn narrow(&mut self) {
        self.refuses_next = self.limit == 1;
        self.limit = (self.limit / 2).max(1);
        self.floor.void();
    }

    fn quiet_pause(&self) -> Duration {
        let now = BootTime::now();
        match self.last_rows_at {
            Some(last) if now.since(last) < BUSY_FOR => BUSY,
            _ => IDLE.mul_f64(crate::random::rng().random_range(0.6..=1.0)),
        }
    }
}

/// What the planner made of the rows of one transaction.
#[derive(Default)]
struct Batch {
    work: Vec<Work>,
    reasons: Vec<&'static str>,
    rows: usize,
    bytes: usize,
    /// The database refused the row that is expected.
    refuses_all: bool,
}

impl Batch {
    /// May be called again when the transaction is repeated: what the first call reserved is given back.
    fn plan(&mut self, planner: &Planner<'_>, rows: &[OutboxRow]) -> RelayPlan {
        self.forget(planner.spine());
        self.rows = rows.len();
        self.bytes = rows.iter().map(|row| row.data.len()).sum();
        let mut plan = RelayPlan::default();
        for (index, row) in rows.iter().enumerate() {
            let draft = match draft_of(&planner.catalog, planner.now, row) {
                Ok(_) if self.refuses_all => Err(refused_by_the_database()),
                checked => checked,
            };
            match draft {
                Ok(draft) => {
                    let identity =
                        Identity { id: row.id, created_at: row.created_at, origin: Origin::Outbox };
                    let event = Event::from_draft(&draft, identity);
                    let planned = planner.plan(&draft, event, content_hash(&draft));
                    plan.events.push((index, planned.new));
                    self.work.push(planned.work);
                }
                Err((reason, detail)) => {
                    self.reasons.push(reason);
                    plan.rejected.push(Rejection { index, reason, detail });
                }
            }
        }
        plan
    }

    /// Whether the scan ended because there were no more rows, not at one of its limits. A row of more than half
    /// the bytes allowed may be missed here; it cannot become an event, and is set aside by the next full scan.
    fn is_short(&self, request: RelayRequest, taken: u32) -> bool {
        let took_all = taken as usize == self.rows;
        took_all && taken < request.limit && self.bytes <= request.bytes_max / 2
    }

    /// Deliveries that found the lane of a quick receiver full.
    fn crowded_out(&self, spine: &Spine) -> usize {
        self.work.iter().map(|work| work.crowded_out(spine)).sum()
    }

    fn committed(&mut self, spine: &Spine, results: Vec<AcceptResult>) {
        for (work, result) in self.work.drain(..).zip(results) {
            match result {
                AcceptResult::Created => {
                    spine.metrics.event_accepted(Origin::Outbox);
                    work.queue(spine);
                }
                AcceptResult::Taken(earlier) => {
                    if !earlier.same_content {
                        self.reasons.push("key_conflict");
                    }
                    work.forget(spine);
                }
            }
        }
        if let Some(first) = self.reasons.first() {
            tracing::warn!(
                "{} rows of the outbox cannot become events (the first: {first}); they are kept in outbox_rejected.",
                self.reasons.len()
            );
        }
        self.reasons.drain(..).for_each(|reason| spine.metrics.outbox_rejected(reason));
    }

    fn forget(&mut self, spine: &Spine) {
        self.work.drain(..).for_each(|work| work.forget(spine));
        self.reasons.clear();
    }
}

fn refused_by_the_database() -> Refusal {
    ("unreadable", "the database refuses this row as an event, though its fields are well formed".to_owned())
}
