//! Lanes: the deliveries this process may send next, one queue per endpoint (docs/protocol.md L1).
//!
//! First in, first out within an endpoint; round robin over tenants, then over a tenant's endpoints; at most
//! `maxConcurrency` in flight per endpoint. A lane costs nothing until it is used and is removed when it is
//! empty and quiet.
//!
//! Nothing waits here for time: what meets a hold goes back to the database with the end of the hold as its
//! due time, so memory holds only what can be sent as soon as the receiver and this process have room.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use pombo_domain::attempt::Attempt;
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::{EndpointId, SessionId, TenantId};
use pombo_domain::limits;
use pombo_store::claim::ClaimedDelivery;

/// What a job sends, if it is in memory.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) body: Bytes,
    pub(crate) content_type: Arc<str>,
}

/// A person waits for this attempt.
#[derive(Debug)]
pub(crate) struct Manual {
    /// When the schedule would have tried next; infinity parks again.
    pub(crate) due_at: Timestamp,
    /// Where the attempt is told.
    pub(crate) answer: Option<oneshot::Sender<Attempt>>,
    /// Send although the endpoint is paused or disabled.
    pub(crate) force: bool,
}

/// A delivery in a lane.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) delivery: ClaimedDelivery,
    pub(crate) content: Option<Content>,
    pub(crate) manual: Option<Manual>,
}

impl Job {
    pub(crate) fn token(&self) -> Token {
        self.delivery.token
    }

    fn body_bytes(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.body.len())
    }
}

/// What the lane must know of its endpoint, given with each push.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneRules {
    pub(crate) endpoint: EndpointId,
    pub(crate) tenant: TenantId,
    pub(crate) cap: u16,
}

/// How long rows that were woken are expected to come back as claimed. A claim follows a wake within
/// milliseconds; what has not come by then was taken elsewhere or waits for a later time.
const EXPECTED_FOR: Duration = Duration::from_secs(1);

/// A receiver that answers within this is quick: its lane is half empty again about as soon.
const QUICK: Duration = Duration::from_millis(50);
/// Weight of a new attempt's length is one in so many.
const SMOOTHING: i64 = 8;

#[derive(Default)]
struct Lane {
    tenant: Option<TenantId>,
    cap: u16,
    queue: VecDeque<Job>,
    in_flight: u16,
    /// Places promised to accepts whose commit is open.
    reserved: usize,
    /// Rows woken in the database and not yet claimed.
    expected: usize,
    /// Until when those are counted.
    expected_until: Option<Timestamp>,
    hold_until: Option<Timestamp>,
    /// Rows of this endpoint are parked in the database, or may be: accepts park behind them.
    has_backlog: bool,
    /// A wake is under way.
    is_waking: bool,
    in_ring: bool,
    /// Length of attempts, smoothed, in microseconds; 0 until the first has ended.
    attempt_micros: i64,
}

impl Lane {
    fn room(&self) -> usize {
        limits::LANE_ROOM_MIN.max(2 * usize::from(self.cap))
    }

    fn taken(&self) -> usize {
        self.queue.len() + usize::from(self.in_flight) + self.reserved
    }

    fn free(&self) -> usize {
        self.room().saturating_sub(self.taken() + self.expected)
    }

    fn is_quick(&self) -> bool {
        self.attempt_micros <= QUICK.as_micros() as i64
    }

    /// Jobs that could be in flight now.
    fn ready(&self) -> usize {
        self.queue.len().min(usize::from(self.cap.saturating_sub(self.in_flight)))
    }

    fn hold_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.hold_until.filter(|until| *until > now)
    }

    fn is_idle(&self) -> bool {
        self.taken() + self.expected == 0 && !self.has_backlog && !self.is_waking && !self.in_ring
    }
}

#[derive(Default)]
struct Inner {
    lanes: HashMap<EndpointId, Lane>,
    /// Tenants with a runnable lane, and per tenant its runnable lanes; both turn round.
    tenants: VecDeque<TenantId>,
    rings: HashMap<TenantId, VecDeque<EndpointId>>,
    /// Lanes whose backlog should be woken.
    to_wake: Vec<EndpointId>,
    /// Lanes that expect woken rows, by the time until which they do.
    expecting: VecDeque<(Timestamp, EndpointId)>,
    /// Bodies in memory.
    bytes: usize,
    /// Sum of [`Lane::ready`].
    ready: usize,
}

/// All lanes.
#[derive(Default)]
pub(crate) struct Lanes {
    inner: Mutex<Inner>,
    /// Something may be runnable that was not.
    pub(crate) ready: Notify,
    /// A backlog should be woken.
    pub(crate) wakes: Notify,
    /// Queues have become shorter.
    pub(crate) drained: Notify,
}

/// Whether a delivery finds a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// One is reserved; it must be followed by [`Lanes::push_reserved`] or [`Lanes::unreserve`].
    Reserved,
    /// Park it behind the backlog.
    Park,
    /// The endpoint is on hold until then.
    HoldUntil(Timestamp),
}

/// How full the lanes of quick receivers are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QuickLanes {
    /// One of them is more than half full, or has a backlog in the database.
    pub(crate) is_crowded: bool,
    /// Free places in those in use; `None` where none is.
    pub(crate) free: Option<usize>,
}

/// A job that finds no place, and when it is due: [`Timestamp::INFINITY`] parks it behind a full lane,
/// another time is the end of a hold.
#[derive(Debug)]
pub(crate) struct Displaced {
    pub(crate) job: Job,
    pub(crate) due_at: Timestamp,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics while holding the lanes")
    }

    /// Gives the lock back, and a hint to the waker where the change asked for one.
    fn let_go(&self, inner: MutexGuard<'_, Inner>) {
        let wakes = !inner.to_wake.is_empty();
        drop(inner);
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Asks for a place for a delivery about to be inserted (A5).
    pub(crate) fn reserve(&self, rules: LaneRules, now: Timestamp) -> Place {
        let mut inner = self.lock();
        let lane = inner.lane(rules);
        if let Some(until) = lane.hold_at(now) {
            return Place::HoldUntil(until);
        }
        if lane.has_backlog || lane.free() == 0 {
            lane.has_backlog = true;
            return Place::Park;
        }
        lane.reserved += 1;
        Place::Reserved
    }

    /// Gives a reserved place back (the commit failed).
    pub(crate) fn unreserve(&self, endpoint: EndpointId) {
        let mut inner = self.lock();
        if let Some(lane) = inner.lanes.get_mut(&endpoint) {
            lane.reserved = lane.reserved.saturating_sub(1);
        }
        inner.settle(endpoint);
        self.let_go(inner);
    }

    /// Queues deliveries whose places were reserved. Those whose endpoint was put on hold since come back.
    #[must_use]
    pub(crate) fn push_reserved(&self, jobs: Vec<(LaneRules, Job)>, now: Timestamp) -> Vec<Displaced> {
        let mut displaced = Vec::new();
        if jobs.is_empty() {
            return displaced;
        }
        let mut inner = self.lock();
        for (rules, job) in jobs {
            let lane = inner.lane(rules);
            lane.reserved = lane.reserved.saturating_sub(1);
            match lane.hold_at(now) {
                Some(due_at) => displaced.push(Displaced { job, due_at }),
                None => inner.queue(rules.endpoint, job),
            }
        }
        drop(inner);
        self.ready.notify_one();
        displaced
    }

    /// Queues claimed deliveries; those that find no room, or a hold, come back (C1).
    #[must_use]
    pub(crate) fn push_claimed(&self, jobs: Vec<(LaneRules, Job)>, now: Timestamp) -> Vec<Displaced> {
        let mut displaced = Vec::new();
        let mut inner = self.lock();
        for (rules, job) in jobs {
            let lane = inner.lane(rules);
            lane.expected = lane.expected.saturating_sub(1);
            // A person's attempt is made now, whatever waits and whatever the receiver asked for.
            if job.manual.is_some() {
                inner.queue(rules.endpoint, job);
            } else if let Some(due_at) = lane.hold_at(now) {
                displaced.push(Displaced { job, due_at });
            } else if lane.taken() >= lane.room() {
                lane.has_backlog = true;
                displaced.push(Displaced { job, due_at: Timestamp::INFINITY });
            } else {
                inner.queue(rules.endpoint, job);
            }
        }
        drop(inner);
        self.ready.notify_one();
        displaced
    }

    /// The next job to send, by turns.
    pub(crate) fn next(&self) -> Option<Job> {
        let mut inner = self.lock();
        let job = inner.next();
        self.let_go(inner);
        job
    }

    /// An attempt has ended.
    pub(crate) fn finished(&self, endpoint: EndpointId) {
        let mut inner = self.lock();
        inner.update(endpoint, |lane| lane.in_flight = lane.in_flight.saturating_sub(1));
        inner.ring_if_runnable(endpoint);
        inner.settle(endpoint);
        self.let_go(inner);
        self.ready.notify_one();
    }

    /// An attempt took so long.
    pub(crate) fn took(&self, endpoint: EndpointId, duration: Duration) {
        if let Some(lane) = self.lock().lanes.get_mut(&endpoint) {
            let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).max(1);
            lane.attempt_micros = match lane.attempt_micros {
                0 => micros,
                before => before + (micros - before) / SMOOTHING,
            };
        }
    }

    /// Whether a full lane of this endpoint empties within moments.
    pub(crate) fn is_quick(&self, endpoint: EndpointId) -> bool {
        self.lock().lanes.get(&endpoint).is_none_or(Lane::is_quick)
    }

    /// How full the lanes of quick receivers are.
    pub(crate) fn quick_lanes(&self) -> QuickLanes {
        let inner = self.lock();
        let mut found = QuickLanes::default();
        for lane in inner.lanes.values().filter(|lane| lane.is_quick()) {
            found.is_crowded |= lane.has_backlog || 2 * lane.taken() > lane.room();
            found.free = Some(found.free.unwrap_or(0) + lane.free());
        }
        found
    }

    /// Holds an endpoint until an instant; a later end stays. What is queued comes back, to be due at the end.
    #[must_use]
    pub(crate) fn hold(&self, rules: LaneRules, until: Timestamp) -> Vec<Displaced> {
        let mut inner = self.lock();
        let lane = inner.lane(rules);
        let due_at = until.max(lane.hold_until.unwrap_or(until));
        lane.hold_until = Some(due_at);
        let jobs = inner.take_out(rules.endpoint, |job| job.manual.is_none());
        jobs.into_iter().map(|job| Displaced { job, due_at }).collect()
    }

    /// The end of an endpoint's hold, if one lies ahead.
    pub(crate) fn hold_of(&self, endpoint: EndpointId, now: Timestamp) -> Option<Timestamp> {
        self.lock().lanes.get(&endpoint)?.hold_at(now)
    }

    /// Has the database asked for parked rows of an endpoint that has changed. Accepts go on meanwhile: parking
    /// behind a backlog begins when there is one.
    pub(crate) fn seek_backlog(&self, rules: LaneRules) {
        let mut inner = self.lock();
        let lane = inner.lane(rules);
        if !lane.is_waking && lane.free() > 0 {
            lane.is_waking = true;
            inner.to_wake.push(rules.endpoint);
        }
        inner.ring_if_runnable(rules.endpoint);
        self.let_go(inner);
    }

    /// Notes that rows of an endpoint are parked in the database.
    pub(crate) fn note_backlog(&self, rules: LaneRules) {
        let mut inner = self.lock();
        inner.lane(rules).has_backlog = true;
        inner.ring_if_runnable(rules.endpoint);
        inner.settle(rules.endpoint);
        self.let_go(inner);
    }

    /// Endpoints whose backlog should be woken now, with the room of their lanes.
    pub(crate) fn take_wakes(&self, now: Timestamp) -> Vec<(EndpointId, u32)> {
        let mut inner = self.lock();
        inner.stop_expecting(now);
        let mut wakes = Vec::new();
        for endpoint in std::mem::take(&mut inner.to_wake) {
            let Some(lane) = inner.lanes.get_mut(&endpoint) else { continue };
            if lane.hold_at(now).is_some() {
                // It would wake only to be put off; the sweep asks again when the hold is over.
                lane.is_waking = false;
            } else {
                wakes.push((endpoint, lane.free() as u32));
            }
        }
        wakes
    }

    /// Whether woken rows are expected, which may not come: [`Lanes::take_wakes`] should be asked again soon.
    pub(crate) fn expects(&self) -> bool {
        !self.lock().expecting.is_empty()
    }

    /// What a wake did: how many rows became due, and whether more are parked. `None` if it failed.
    pub(crate) fn woken(&self, endpoint: EndpointId, result: Option<(u32, bool)>, now: Timestamp) {
        let mut inner = self.lock();
        let Some(lane) = inner.lanes.get_mut(&endpoint) else { return };
        lane.is_waking = false;
        if let Some((woken, more)) = result {
            lane.has_backlog = more;
            if woken > 0 {
                let until = now.plus(EXPECTED_FOR);
                lane.expected += woken as usize;
                lane.expected_until = Some(until);
                inner.expecting.push_back((until, endpoint));
            }
        }
        // Rows that keep a later time make no work, so there may be room for more at once. What failed waits
        // for the next attempt that ends, or the sweep.
        if result.is_some() {
            inner.settle(endpoint);
        }
        self.let_go(inner);
    }

    /// Removes lanes that are idle and whose hold is over. Once per sweep.
    pub(crate) fn tidy(&self, now: Timestamp) {
        self.lock().lanes.retain(|_, lane| lane.hold_at(now).is_some() || !lane.is_idle());
    }

    /// Takes out every queued job that `leaves` chooses.
    pub(crate) fn drain(&self, mut leaves: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut inner = self.lock();
        let endpoints: Vec<EndpointId> =
            inner.lanes.iter().filter(|(_, lane)| !lane.queue.is_empty()).map(|(id, _)| *id).collect();
        let mut out = Vec::new();
        for endpoint in endpoints {
            out.extend(inner.take_out(endpoint, &mut leaves));
        }
        self.let_go(inner);
        out
    }

    /// Takes out the queued jobs of a session that is over.
    pub(crate) fn drain_session(&self, session: SessionId) -> Vec<Job> {
        self.drain(|job| job.token().owner == session)
    }

    /// Bytes of bodies that may still be kept (L1); what finds none is read when it is sent.
    pub(crate) fn bytes_free(&self) -> usize {
        limits::LANE_BYTES_MAX.saturating_sub(self.lock().bytes)
    }

    /// Jobs that wait only because this process is busy: of each lane, up to what its cap lets run. What waits
    /// for a slow or limited receiver does not count (A7).
    pub(crate) fn ready_to_send(&self) -> usize {
        self.lock().ready
    }
}

impl Inner {
    fn lane(&mut self, rules: LaneRules) -> &mut Lane {
        let lane = self.lanes.entry(rules.endpoint).or_default();
        self.ready -= lane.ready();
        lane.tenant = Some(rules.tenant);
        lane.cap = rules.cap;
        self.ready += lane.ready();
        lane
    }

    /// Changes a lane and keeps the sum of what is ready.
    fn update<R>(&mut self, endpoint: EndpointId, change: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let lane = self.lanes.get_mut(&endpoint)?;
        self.ready -= lane.ready();
        let result = change(lane);
        self.ready += lane.ready();
        Some(result)
    }

    fn queue(&mut self, endpoint: EndpointId, mut job: Job) {
        if self.bytes + job.body_bytes() > limits::LANE_BYTES_MAX {
            job.content = None;
        }
        self.bytes += job.body_bytes();
        self.update(endpoint, |lane| match job.manual {
            Some(_) => lane.queue.push_front(job),
            None => lane.queue.push_back(job),
        });
        self.ring_if_runnable(endpoint);
    }

    fn take_out(&mut self, endpoint: EndpointId, mut leaves: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let split = |lane: &mut Lane| {
            let (left, kept): (Vec<_>, Vec<_>) = lane.queue.drain(..).partition(|job| leaves(job));
            lane.queue = kept.into();
            left
        };
        let left = self.update(endpoint, split).unwrap_or_default();
        self.bytes -= left.iter().map(Job::body_bytes).sum::<usize>();
        self.settle(endpoint);
        left
    }

    fn next(&mut self) -> Option<Job> {
        // Each turn of the loop takes a lane out of the ring or returns, so it ends.
        while let Some(tenant) = self.tenants.pop_front() {
            let Some(ring) = self.rings.get_mut(&tenant) else { continue };
            let endpoint = ring.pop_front();
            if ring.is_empty() {
                self.rings.remove(&tenant);
            } else {
                self.tenants.push_back(tenant);
            }
            let Some(endpoint) = endpoint else { continue };
            let job = self.update(endpoint, |lane| {
                lane.in_ring = false;
                if lane.ready() == 0 {
                    return None;
                }
                lane.in_flight += 1;
                lane.queue.pop_front()
            });
            let Some(job) = job.flatten() else {
                self.settle(endpoint);
                continue;
            };
            self.bytes -= job.body_bytes();
            self.ring_if_runnable(endpoint);
            return Some(job);
        }
        None
    }

    fn ring_if_runnable(&mut self, endpoint: EndpointId) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let Some(tenant) = lane.tenant else { return };
        if lane.in_ring || lane.ready() == 0 {
            return;
        }
        lane.in_ring = true;
        let ring = self.rings.entry(tenant).or_default();
        if ring.is_empty() {
            self.tenants.push_back(tenant);
        }
        ring.push_back(endpoint);
    }

    /// Asks for a wake when a lane with a backlog has run half empty.
    fn wake_if_low(&mut self, endpoint: EndpointId) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let is_low = lane.taken() + lane.expected <= lane.room() / 2;
        if lane.has_backlog && !lane.is_waking && is_low {
            lane.is_waking = true;
            self.to_wake.push(endpoint);
        }
    }

    /// Rows that did not come are not waited for any longer.
    fn stop_expecting(&mut self, now: Timestamp) {
        while let Some((until, endpoint)) = self.expecting.front().copied() {
            if until > now {
                return;
            }
            self.expecting.pop_front();
            if let Some(lane) = self.lanes.get_mut(&endpoint)
                && lane.expected_until.is_none_or(|until| until <= now)
            {
                lane.expected = 0;
            }
            self.settle(endpoint);
        }
    }

    /// A lane has become emptier: wakes its backlog, or forgets it.
    fn settle(&mut self, endpoint: EndpointId) {
        self.wake_if_low(endpoint);
        // A hold is kept: it is written in the database too, but the next accept asks here.
        if self.lanes.get(&endpoint).is_some_and(|lane| lane.is_idle() && lane.hold_until.is_none()) {
            self.lanes.remove(&endpoint);
        }
    }
}

#[cfg(test)]
mod tests;
