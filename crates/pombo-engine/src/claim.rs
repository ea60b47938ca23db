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
use pombo_store::parking::Unclaim;

use crate::clock::BootTime;
use crate::holdings::Entered;
use crate::lanes::{Content, Job};
use crate::spine::{Patience, Quietly, Spine, rules_of};

/// Pause between two looks while rows keep coming.
const BUSY: Duration = Duration::from_millis(10);
/// Longest pause between two looks (C4).
const IDLE: Duration = Duration::from_millis(250);
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
}

impl Claimer {
    async fn step(&mut self, spine: &Spine) -> Result<Duration, StoreError> {
        let Some(session) = spine.session().filter(|session| session.allows(Duration::ZERO)) else {
            self.floor = None;
            return Ok(IDLE);
        };
        let shards = spine.homes().shards().to_vec();
        // Memory is bounded: what waits here already is enough for a while.
        let room = (4 * spine.config.slots).saturating_sub(spine.lanes.queued()) as u32;
        let limit = room.min(limits::CLAIM_ROWS_MAX);
        if limit == 0 || shards.is_empty() {
            return Ok(BUSY);
        }
        let floor = self.floor_for(&shards);
        let request = ClaimRequest { session: session.id, shards, floor, limit };
        let outstanding = spine.claiming.lock().await;
        let claimed = spine.store.claim_due(&request).await?;
        let jobs = enter(spine, &claimed.deliveries);
        drop(outstanding);
        let got = claimed.deliveries.len() as u32;
        self.learn(&claimed, got < limit);
        spine.refresh_catalog(claimed.config_version).await?;
        take_in(spine, jobs, &claimed).await?;
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
fn enter(spine: &Spine, deliveries: &[ClaimedDelivery]) -> Vec<Job> {
    deliveries
        .iter()
        .filter_map(|delivery| {
            let job = Box::new(Job { delivery: delivery.clone(), content: None, manual: None });
            match spine.holdings.enter(job) {
                Entered::Fresh(job) => Some(*job),
                Entered::Waits => None,
            }
        })
        .collect()
}

/// Puts claimed jobs into their lanes, or gives them back: parked where the endpoint is not active or its lane
/// is full, due at the end of a hold (C1).
async fn take_in(spine: &Spine, jobs: Vec<Job>, claimed: &Claimed) -> Result<(), StoreError> {
    let (catalog, now) = (spine.catalog(), claimed.now);
    for (endpoint, until) in &claimed.holds {
        if let Some(target) = catalog.target(*endpoint) {
            spine.lanes.hold(rules_of(target), *until);
        }
    }
    let (mut queue, mut back) = (Vec::new(), Vec::new());
    for job in jobs {
        let delivery = &job.delivery;
        match catalog.target(delivery.endpoint_id) {
            // Deleted: the sweep cancels the row, whoever owns it (P3).
            None => drop(spine.holdings.leave(job.token())),
            Some(target) if !target.is_active() => {
                back.push((job.token(), Timestamp::INFINITY, delivery.not_before));
            }
            Some(target) => match spine.lanes.hold_of(delivery.endpoint_id, now) {
                Some(until) => back.push((job.token(), until, None)),
                None => queue.push((rules_of(target), job)),
            },
        }
    }
    let mut queue = load_bodies(spine, queue).await?;
    let without_room = spine.lanes.push_claimed(std::mem::take(&mut queue), now);
    back.extend(without_room.iter().map(|job| (job.token(), Timestamp::INFINITY, job.delivery.not_before)));
    give_back(spine, back).await
}

async fn give_back(
    spine: &Spine,
    rows: Vec<(pombo_domain::delivery::Token, Timestamp, Option<Timestamp>)>,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<Unclaim> =
        rows.into_iter().map(|(token, due_at, not_before)| Unclaim { token, due_at, not_before }).collect();
    let result = spine.store.unclaim(&rows).await;
    // Answered or not, nothing of them is worked on here: if the write did not happen, the audit finds them.
    for row in &rows {
        if let Some(job) = spine.holdings.leave(row.token) {
            crate::deliver::requeue(spine, job);
        }
    }
    result.map(|_| ())
}

type Queue = Vec<(crate::lanes::LaneRules, Job)>;

/// Reads the bodies of a claim together, while memory for bodies is left; the rest is read when it is sent (L1).
async fn load_bodies(spine: &Spine, mut queue: Queue) -> Result<Queue, StoreError> {
    if queue.is_empty() {
        return Ok(queue);
    }
    let mut events: Vec<(EventId, Timestamp)> =
        queue.iter().map(|(_, job)| (job.delivery.event_id, job.delivery.event_at)).collect();
    events.sort_unstable();
    events.dedup();
    let bodies = spine.store.bodies(&events).await?;
    let bodies: HashMap<EventId, Content> = bodies
        .into_iter()
        .map(|body| (body.event_id, Content { body: body.body, content_type: body.content_type.into() }))
        .collect();
    for (_, job) in &mut queue {
        job.content = bodies.get(&job.delivery.event_id).cloned();
    }
    Ok(queue)
}
