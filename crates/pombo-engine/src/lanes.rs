//! Lanes: the deliveries this process may send next, one queue per endpoint (docs/protocol.md L1).
//!
//! First in, first out within an endpoint; round robin over tenants, then over a tenant's endpoints; at most
//! `maxConcurrency` in flight per endpoint. A lane costs nothing until it is used and is removed when it is
//! empty and quiet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

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
    hold_until: Option<Timestamp>,
    /// Rows of this endpoint are parked in the database, or may be: accepts park behind them.
    has_backlog: bool,
    /// A wake is under way.
    is_waking: bool,
    in_ring: bool,
}

impl Lane {
    fn room(&self) -> usize {
        limits::LANE_ROOM_MIN.max(2 * usize::from(self.cap))
    }

    fn taken(&self) -> usize {
        self.queue.len() + usize::from(self.in_flight) + self.reserved
    }

    fn is_held(&self, now: Timestamp) -> bool {
        self.hold_until.is_some_and(|until| until > now)
    }

    fn is_runnable(&self, now: Timestamp) -> bool {
        !self.queue.is_empty() && self.in_flight < self.cap && !self.is_held(now)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.in_flight == 0
            && self.reserved == 0
            && !self.has_backlog
            && !self.is_waking
    }
}

#[derive(Default)]
struct Inner {
    lanes: HashMap<EndpointId, Lane>,
    /// Tenants with a runnable lane, and per tenant its runnable lanes; both turn round.
    tenants: VecDeque<TenantId>,
    rings: HashMap<TenantId, VecDeque<EndpointId>>,
    /// Lanes with jobs that wait for the end of a hold.
    held: HashSet<EndpointId>,
    /// Lanes whose backlog should be woken.
    to_wake: Vec<EndpointId>,
    /// Bodies in memory.
    bytes: usize,
    queued: usize,
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

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics while holding the lanes")
    }

    /// Asks for a place for a delivery about to be inserted (A5).
    pub(crate) fn reserve(&self, rules: LaneRules, now: Timestamp) -> Place {
        let mut inner = self.lock();
        let too_many_bytes = inner.bytes > limits::LANE_BYTES_MAX;
        let lane = inner.lane(rules);
        if let Some(until) = lane.hold_until.filter(|until| *until > now) {
            return Place::HoldUntil(until);
        }
        if lane.has_backlog || too_many_bytes || lane.taken() + lane.expected >= lane.room() {
            lane.has_backlog = true;
            return Place::Park;
        }
        lane.reserved += 1;
        Place::Reserved
    }

    /// Gives reserved places back (the commit failed).
    pub(crate) fn unreserve(&self, endpoint: EndpointId) {
        let mut inner = self.lock();
        if let Some(lane) = inner.lanes.get_mut(&endpoint) {
            lane.reserved = lane.reserved.saturating_sub(1);
        }
        inner.forget_if_idle(endpoint);
    }

    /// Queues deliveries whose places were reserved.
    pub(crate) fn push_reserved(&self, jobs: Vec<(LaneRules, Job)>, now: Timestamp) {
        if jobs.is_empty() {
            return;
        }
        let mut inner = self.lock();
        for (rules, job) in jobs {
            let lane = inner.lane(rules);
            lane.reserved = lane.reserved.saturating_sub(1);
            inner.queue(rules, job, now);
        }
        drop(inner);
        self.ready.notify_one();
    }

    /// Queues claimed deliveries; those that find no room come back, to be parked (C1).
    pub(crate) fn push_claimed(&self, jobs: Vec<(LaneRules, Job)>, now: Timestamp) -> Vec<Job> {
        let mut without_room = Vec::new();
        let mut inner = self.lock();
        for (rules, job) in jobs {
            let too_many_bytes = inner.bytes > limits::LANE_BYTES_MAX;
            let lane = inner.lane(rules);
            lane.expected = lane.expected.saturating_sub(1);
            // A person's attempt always finds a place: he waits for it.
            if job.manual.is_none() && (too_many_bytes || lane.taken() >= lane.room()) {
                lane.has_backlog = true;
                without_room.push(job);
            } else {
                inner.queue(rules, job, now);
            }
        }
        drop(inner);
        self.ready.notify_one();
        without_room
    }

    /// The next job to send, by turns.
    pub(crate) fn next(&self, now: Timestamp) -> Option<Job> {
        self.lock().next(now)
    }

    /// An attempt has ended.
    pub(crate) fn finished(&self, endpoint: EndpointId, now: Timestamp) {
        let mut inner = self.lock();
        if let Some(lane) = inner.lanes.get_mut(&endpoint) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
        inner.ring_if_runnable(endpoint, now);
        let wakes = inner.wake_if_low(endpoint);
        inner.forget_if_idle(endpoint);
        drop(inner);
        self.ready.notify_one();
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Holds an endpoint until an instant; a later end stays.
    pub(crate) fn hold(&self, rules: LaneRules, until: Timestamp) {
        let mut inner = self.lock();
        let lane = inner.lane(rules);
        lane.hold_until = lane.hold_until.max(Some(until));
        let waits = !lane.queue.is_empty();
        inner.leave_ring(rules.endpoint);
        if waits {
            inner.held.insert(rules.endpoint);
        }
    }

    /// Puts lanes whose hold is over back into the ring. Returns the next end of a hold that jobs wait for.
    pub(crate) fn end_holds(&self, now: Timestamp) -> Option<Timestamp> {
        let mut inner = self.lock();
        let over: Vec<EndpointId> = inner
            .held
            .iter()
            .filter(|endpoint| inner.lanes.get(endpoint).is_none_or(|lane| !lane.is_held(now)))
            .copied()
            .collect();
        for endpoint in over {
            inner.held.remove(&endpoint);
            inner.ring_if_runnable(endpoint, now);
        }
        inner.held.iter().filter_map(|endpoint| inner.lanes.get(endpoint)?.hold_until).min()
    }

    /// The end of an endpoint's hold, if one lies ahead.
    pub(crate) fn hold_of(&self, endpoint: EndpointId, now: Timestamp) -> Option<Timestamp> {
        self.lock().lanes.get(&endpoint)?.hold_until.filter(|until| *until > now)
    }

    /// Notes that rows of an endpoint are, or may be, parked in the database.
    pub(crate) fn note_backlog(&self, rules: LaneRules) {
        let mut inner = self.lock();
        inner.lane(rules).has_backlog = true;
        if inner.wake_if_low(rules.endpoint) {
            drop(inner);
            self.wakes.notify_one();
        }
    }

    /// Endpoints whose backlog should be woken now, with the room of their lanes.
    pub(crate) fn take_wakes(&self) -> Vec<(EndpointId, u32)> {
        let mut inner = self.lock();
        let endpoints = std::mem::take(&mut inner.to_wake);
        let mut wakes = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            if let Some(lane) = inner.lanes.get(&endpoint) {
                let room = lane.room().saturating_sub(lane.taken() + lane.expected);
                wakes.push((endpoint, room as u32));
            }
        }
        wakes
    }

    /// What a wake did: how many rows became due, and whether more are parked. `None` if it failed.
    pub(crate) fn woken(&self, endpoint: EndpointId, result: Option<(u32, bool)>) {
        let mut inner = self.lock();
        if let Some(lane) = inner.lanes.get_mut(&endpoint) {
            lane.is_waking = false;
            if let Some((woken, more)) = result {
                lane.expected += woken as usize;
                lane.has_backlog = more;
            }
        }
        inner.forget_if_idle(endpoint);
    }

    /// Forgets what was expected from wakes: rows may have been claimed elsewhere. Once per sweep; the room they
    /// were counted against is only a bound on memory.
    /// Lanes that are idle and whose hold is over go too.
    pub(crate) fn tidy(&self, now: Timestamp) {
        let mut inner = self.lock();
        for lane in inner.lanes.values_mut() {
            lane.expected = 0;
            lane.hold_until = lane.hold_until.filter(|until| *until > now);
        }
        inner.lanes.retain(|_, lane| lane.hold_until.is_some() || lane.in_ring || !lane.is_idle());
    }

    /// Takes out every queued job that `leaves` chooses.
    pub(crate) fn drain(&self, mut leaves: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut inner = self.lock();
        let mut out = Vec::new();
        for lane in inner.lanes.values_mut() {
            if lane.queue.iter().any(&mut leaves) {
                let (left, kept): (Vec<_>, Vec<_>) = lane.queue.drain(..).partition(|job| leaves(job));
                lane.queue = kept.into();
                out.extend(left);
            }
        }
        inner.queued -= out.len();
        inner.bytes -= out.iter().map(Job::body_bytes).sum::<usize>();
        out
    }

    /// Takes out the queued jobs of a session that is over.
    pub(crate) fn drain_session(&self, session: SessionId) -> Vec<Job> {
        self.drain(|job| job.token().owner == session)
    }

    /// A queued job was dropped without being sent (its session is over).
    pub(crate) fn finished_unsent(&self, endpoint: EndpointId) {
        self.lock().forget_if_idle(endpoint);
    }

    /// Jobs waiting, held and runnable.
    pub(crate) fn queued(&self) -> usize {
        self.lock().queued
    }

    /// Jobs that wait only because this process is busy: those of lanes in the ring, each counted up to what its
    /// cap lets run. What waits for a slow or limited receiver does not count (A7). Exact only above
    /// [`limits::READY_MAX`]; below it nobody asks.
    pub(crate) fn ready_to_send(&self) -> usize {
        let inner = self.lock();
        if inner.queued <= limits::READY_MAX {
            return inner.queued.min(limits::READY_MAX);
        }
        inner
            .rings
            .values()
            .flatten()
            .filter_map(|endpoint| inner.lanes.get(endpoint))
            .map(|lane| lane.queue.len().min(usize::from(lane.cap.saturating_sub(lane.in_flight))))
            .sum()
    }
}

impl Inner {
    fn lane(&mut self, rules: LaneRules) -> &mut Lane {
        let lane = self.lanes.entry(rules.endpoint).or_default();
        lane.tenant = Some(rules.tenant);
        lane.cap = rules.cap;
        lane
    }

    fn queue(&mut self, rules: LaneRules, job: Job, now: Timestamp) {
        self.bytes += job.body_bytes();
        self.queued += 1;
        let lane = self.lane(rules);
        if job.manual.is_some() {
            lane.queue.push_front(job);
        } else {
            lane.queue.push_back(job);
        }
        if lane.is_held(now) {
            self.held.insert(rules.endpoint);
        }
        self.ring_if_runnable(rules.endpoint, now);
    }

    fn next(&mut self, now: Timestamp) -> Option<Job> {
        // Each turn of the loop takes a lane out of the ring or returns, so it ends.
        while let Some(tenant) = self.tenants.pop_front() {
            let Some(ring) = self.rings.get_mut(&tenant) else { continue };
            let Some(endpoint) = ring.pop_front() else {
                self.rings.remove(&tenant);
                continue;
            };
            let last_of_tenant = ring.is_empty();
            if last_of_tenant {
                self.rings.remove(&tenant);
            } else {
                self.tenants.push_back(tenant);
            }
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            lane.in_ring = false;
            if !lane.is_runnable(now) {
                if lane.is_held(now) && !lane.queue.is_empty() {
                    self.held.insert(endpoint);
                }
                continue;
            }
            let job = lane.queue.pop_front()?;
            lane.in_flight += 1;
            self.queued -= 1;
            self.bytes -= job.body_bytes();
            self.ring_if_runnable(endpoint, now);
            return Some(job);
        }
        None
    }

    fn ring_if_runnable(&mut self, endpoint: EndpointId, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let Some(tenant) = lane.tenant else { return };
        if lane.in_ring || !lane.is_runnable(now) {
            return;
        }
        lane.in_ring = true;
        let ring = self.rings.entry(tenant).or_default();
        if ring.is_empty() {
            self.tenants.push_back(tenant);
        }
        ring.push_back(endpoint);
    }

    fn leave_ring(&mut self, endpoint: EndpointId) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let Some(tenant) = lane.tenant.filter(|_| lane.in_ring) else { return };
        lane.in_ring = false;
        if let Some(ring) = self.rings.get_mut(&tenant) {
            ring.retain(|other| *other != endpoint);
            if ring.is_empty() {
                self.rings.remove(&tenant);
                self.tenants.retain(|other| *other != tenant);
            }
        }
    }

    /// Asks for a wake when a lane with a backlog has run half empty.
    fn wake_if_low(&mut self, endpoint: EndpointId) -> bool {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return false };
        let is_low = lane.taken() + lane.expected <= lane.room() / 2;
        if !lane.has_backlog || lane.is_waking || !is_low {
            return false;
        }
        lane.is_waking = true;
        self.to_wake.push(endpoint);
        true
    }

    fn forget_if_idle(&mut self, endpoint: EndpointId) {
        let Some(lane) = self.lanes.get(&endpoint) else { return };
        // A hold is kept: it is written in the database too, but the next accept asks here.
        if lane.is_idle() && lane.hold_until.is_none() {
            self.lanes.remove(&endpoint);
            self.held.remove(&endpoint);
        }
    }
}
