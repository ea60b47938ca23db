//! Claiming what is due (docs/protocol.md, rules C).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::EventId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::claim::{ClaimRequest, Claimed, ClaimedDelivery};

use crate::clock::BootTime;
use crate::holdings::Entered;
use crate::lanes::{Content, Job, LaneRules};
use crate::returns::put_unknown;
use crate::spine::{Patience, Quietly, Spine, rules_of};

/// Pause between two looks while rows keep coming.
const BUSY: Duration = Duration::from_millis(10);
/// Longest pause between two looks (C4).
const IDLE: Duration = Duration::from_millis(250);
/// Longest time between two looks at the version of the configuration (A3).
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Events whose bodies are read in one statement: bounds the memory they may take beyond the lanes' own bound.
const BODIES_AT_ONCE: usize = 64;
/// How far below the server's clock the floor stays (C2).
const FLOOR_BELOW_NOW: Duration = Duration::from_secs(30);
/// How often a claim scans without a floor (rows released with a time long past stand below it).
const FULL_SCAN_EVERY: Duration = Duration::from_secs(60);

/// Runs until the engine drains.
pub(crate) async fn claim_loop(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    let mut claimer = Claimer::default();
    while !spine.is_draining() {
        let pause = match claimer.step(&spine).await {
            Ok(pause) => {
                patience.reset();
                pause
            }
            Err(error) => {
                claimer.floor = None;
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "Due deliveries cannot be claimed: {error}.");
                }
                patience.next()
            }
        };
        if !pause.is_zero() {
            spine.pause(&spine.signals.due, pause).await;
        }
    }
}

#[derive(Default)]
struct Claimer {
    floor: Option<Timestamp>,
    /// The shards the floor was seen for.
    shards: Vec<i16>,
    full_scan_at: Option<BootTime>,
    /// When the database was last asked.
    asked_at: Option<BootTime>,
}

impl Claimer {
    async fn step(&mut self, spine: &Spine) -> Result<Duration, StoreError> {
        let Some(session) = spine.session().filter(|session| session.allows(spine.config.timeout)) else {
            self.floor = None;
            return Ok(IDLE);
        };
        let mut shards = spine.homes().shards().to_vec();
        // What could be sent now and waits for a slot is enough for a while. What waits for its receiver does not
        // count: its lane is bounded, and others must not wait with it.
        let wanted = 2 * spine.config.slots;
        let mut limit =
            (wanted.saturating_sub(spine.lanes.ready_to_send()) as u32).min(limits::CLAIM_ROWS_MAX);
        if limit < limits::CLAIM_ROWS_MAX.min(wanted as u32) / 4 || shards.is_empty() {
            let now = BootTime::now();
            if self.asked_at.is_some_and(|last| now.since(last) < PROBE_EVERY) {
                return Ok(BUSY);
            }
            // A claim of nothing still tells the version of the configuration (A3).
            (shards, limit) = (Vec::new(), 0);
        }
        self.asked_at = Some(BootTime::now());
        let floor = if limit == 0 { self.floor } else { self.floor_for(&shards) };
        let request = ClaimRequest { session: session.id, shards, floor, limit };
        let outstanding = spine.claiming.lock().await;
        let mut claimed = spine.store.claim_due(&request).await?;
        let deliveries = std::mem::take(&mut claimed.deliveries);
        let got = deliveries.len() as u32;
        let jobs = enter(spine, deliveries);
        drop(outstanding);
        if limit > 0 {
            self.learn(&claimed, got < limit);
        }
        // From here on the jobs are in memory alone: nothing may break off before each has its place.
        let refreshed = spine.refresh_catalog(claimed.config_version).await;
        take_in(spine, jobs, &claimed).await;
        refreshed?;
        Ok(match got {
            0 => IDLE.mul_f64(crate::random::rng().random_range(0.6..=1.0)),
            got if got == limit => Duration::ZERO,
            _ => BUSY,
        })
    }

    fn floor_for(&mut self, shards: &[i16]) -> Option<Timestamp> {
        let now = BootTime::now();
        let full = self.full_scan_at.is_none_or(|last| now.since(last) >= FULL_SCAN_EVERY);
        if full || self.shards != shards {
            self.full_scan_at = Some(now);
            self.shards = shards.to_vec();
            self.floor = None;
        }
        self.floor
    }

    /// A claim that came back short saw everything due in its shards; what is due later than 30 s ago may still
    /// hang in an open transaction, whose statements end within 5 s.
    fn learn(&mut self, claimed: &Claimed, is_short: bool) {
        if is_short {
            self.floor = Some(claimed.now.minus(FLOOR_BELOW_NOW)).max(self.floor);
        }
    }
}

/// Enters what was claimed (S6 b); jobs whose delivery has older work here wait in the holdings.
fn enter(spine: &Spine, deliveries: Vec<ClaimedDelivery>) -> Vec<Job> {
    deliveries
        .into_iter()
        .filter_map(|delivery| {
            let job = Box::new(Job { delivery, content: None, manual: None });
            match spine.holdings.enter(job) {
                Entered::Fresh(job) => Some(*job),
                Entered::Waits => None,
            }
        })
        .collect()
}

/// Puts claimed jobs into their lanes, or gives them back: parked where the endpoint is not active or its lane
/// is full, due at the end of a hold (C1).
async fn take_in(spine: &Spine, jobs: Vec<Job>, claimed: &Claimed) {
    let catalog = spine.catalog();
    for (endpoint, until) in &claimed.holds {
        if let Some(target) = catalog.target(*endpoint) {
            spine.returns.put_displaced(spine.lanes.hold(rules_of(target), *until));
        }
    }
    let mut queue = Vec::with_capacity(jobs.len());
    for job in jobs {
        match catalog.target(job.delivery.endpoint_id) {
            None => put_unknown(spine, &job),
            Some(target) if !target.is_active() => spine.returns.put(&job, Timestamp::INFINITY),
            Some(target) => match spine.lanes.hold_of(job.delivery.endpoint_id, claimed.now) {
                Some(until) => spine.returns.put(&job, until),
                None => queue.push((rules_of(target), job)),
            },
        }
    }
    load_bodies(spine, &mut queue).await;
    spine.returns.put_displaced(spine.lanes.push_claimed(queue, claimed.now));
}

/// Reads bodies of a claim together while memory for bodies is left; the rest is read when it is sent (L1), and
/// so is what cannot be read now.
async fn load_bodies(spine: &Spine, queue: &mut [(LaneRules, Job)]) {
    let mut events: Vec<(EventId, Timestamp)> =
        queue.iter().map(|(_, job)| (job.delivery.event_id, job.delivery.event_at)).collect();
    events.sort_unstable();
    events.dedup();
    let mut free = spine.lanes.bytes_free();
    let mut contents = HashMap::with_capacity(events.len());
    for chunk in events.chunks(BODIES_AT_ONCE) {
        if free == 0 {
            break;
        }
        match spine.store.bodies(chunk).await {
            Ok(bodies) => contents.extend(bodies.into_iter().map(|body| {
                free = free.saturating_sub(body.body.len());
                (body.event_id, Content { body: body.body, content_type: body.content_type.into() })
            })),
            Err(error) => {
                spine.note_error(&error);
                break;
            }
        }
    }
    for (_, job) in queue {
        job.content = contents.get(&job.delivery.event_id).cloned();
    }
}
