//! From a draft to rows: which endpoints it goes to, and how each delivery starts (docs/protocol.md A3, A5).

use std::sync::Arc;

use sha2::{Digest, Sha256};

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::event::{Draft, Event, Payload};
use pombo_domain::id::{DeliveryId, EndpointId, SessionId};
use pombo_domain::routing;
use pombo_store::accept::{NewDelivery, NewEvent, Placement};
use pombo_store::claim::ClaimedDelivery;

use crate::catalog::{Catalog, Target};
use crate::homes::Homes;
use crate::lanes::{Content, Job, LaneRules, Place};
use crate::returns::let_go;
use crate::spine::{Spine, rules_of};

/// Generation of a row when it is inserted.
const FIRST_GENERATION: i32 = 1;

/// One event to be inserted, with the jobs of its born-claimed deliveries.
pub(crate) struct Planned {
    pub(crate) new: NewEvent,
    pub(crate) work: Work,
}

/// What a planned event means for this process.
#[derive(Default)]
pub(crate) struct Work {
    /// Its born-claimed deliveries.
    jobs: Vec<(LaneRules, Job)>,
    /// Endpoints of which a delivery was parked behind a full lane.
    parked: Vec<LaneRules>,
}

/// What planning needs to know, read once per batch.
pub(crate) struct Planner<'a> {
    spine: &'a Spine,
    pub(crate) catalog: Arc<Catalog>,
    homes: Arc<Homes>,
    pub(crate) session: SessionId,
    pub(crate) now: Timestamp,
}

impl<'a> Planner<'a> {
    /// `None` while this process holds no session.
    pub(crate) fn new(spine: &'a Spine) -> Option<Self> {
        let session = spine.session().filter(|session| !session.is_over())?;
        Some(Self {
            spine,
            catalog: spine.catalog(),
            homes: spine.homes(),
            session: session.id,
            now: spine.now(),
        })
    }

    /// What the plan is made for.
    pub(crate) fn spine(&self) -> &'a Spine {
        self.spine
    }

    /// Plans one event. Places in lanes are reserved and tokens registered: follow with [`Work::queue`] or
    /// [`Work::forget`].
    pub(crate) fn plan(&self, draft: &Draft, event: Event, content_hash: [u8; 32]) -> Planned {
        let mut planned = Planned {
            new: NewEvent {
                event,
                tenant: draft.tenant.clone(),
                client_key: draft.client_key.clone(),
                content_hash,
                deliveries: Vec::new(),
                targets: draft.targets.clone(),
                deliver_at: draft.deliver_at,
            },
            work: Work::default(),
        };
        let mut content = None;
        for target in self.catalog.of_tenant(planned.new.event.tenant_id) {
            if routing::matches(draft, &target.endpoint).is_ok() {
                self.plan_delivery(&mut planned, target, &mut content);
            }
        }
        planned
    }

    fn plan_delivery(&self, planned: &mut Planned, target: &Target, content: &mut Option<Content>) {
        let event = &planned.new.event;
        let id = DeliveryId::derive(event.id, event.created_at, target.endpoint.id);
        let token = Token { id, owner: self.session, generation: FIRST_GENERATION };
        let placement = self.place(target, planned.new.deliver_at, token);
        if placement == Placement::BornClaimed {
            let content = content.get_or_insert_with(|| Content {
                body: event.body.clone(),
                content_type: event.content_type.as_str().into(),
            });
            let delivery = first_claim(token, event, target.endpoint.id);
            let job = Job { delivery, content: Some(content.clone()), manual: None };
            planned.work.jobs.push((rules_of(target), job));
        } else if matches!(placement, Placement::Parked { .. }) && target.is_active() {
            planned.work.parked.push(rules_of(target));
        }
        let (endpoint_id, shard) = (target.endpoint.id, target.shard);
        planned.new.deliveries.push(NewDelivery { id, endpoint_id, shard, placement });
    }

    fn place(&self, target: &Target, deliver_at: Option<Timestamp>, token: Token) -> Placement {
        let later = deliver_at.filter(|at| *at > self.now);
        if !target.is_active() {
            return Placement::Parked { not_before: later };
        }
        if let Some(at) = later {
            return Placement::DueAt(at);
        }
        // The first entry of a schedule may ask for a delay before the first attempt.
        if !target.starts_at_once
            && let Some(delay) = target.retry.delay_before(1, &mut crate::random::rng())
        {
            return Placement::DueAt(self.now.plus(delay));
        }
        if !self.homes.holds(target.shard) {
            return Placement::Due;
        }
        match self.spine.lanes.reserve(rules_of(target), self.now) {
            Place::Reserved if self.spine.holdings.register(token) => Placement::BornClaimed,
            Place::Reserved => {
                self.spine.lanes.unreserve(target.endpoint.id);
                Placement::Due
            }
            Place::Park => Placement::Parked { not_before: None },
            Place::HoldUntil(until) => Placement::DueAt(until),
        }
    }
}

fn first_claim(token: Token, event: &Event, endpoint_id: EndpointId) -> ClaimedDelivery {
    ClaimedDelivery {
        token,
        event_id: event.id,
        event_at: event.created_at,
        kind: event.kind.clone(),
        endpoint_id,
        tenant_id: event.tenant_id,
        created_at: event.created_at,
        attempts: 0,
        rescues: 0,
        not_before: None,
    }
}

impl Work {
    /// Deliveries that found the lane of a quick receiver full.
    pub(crate) fn crowded_out(&self, spine: &Spine) -> usize {
        self.parked.iter().filter(|rules| spine.lanes.is_quick(rules.endpoint)).count()
    }

    /// The commit was answered: its jobs are ours.
    pub(crate) fn queue(self, spine: &Spine) {
        // A parked row may have been missed by a wake between planning and commit: say it again (P1).
        for rules in self.parked {
            spine.lanes.note_backlog(rules);
        }
        let displaced = spine.lanes.push_reserved(self.jobs, spine.now());
        spine.returns.put_displaced(displaced);
    }

    /// Nothing was inserted, or the outcome is unknown (then the audit finds and releases what was).
    pub(crate) fn forget(&self, spine: &Spine) {
        for (rules, job) in &self.jobs {
            spine.lanes.unreserve(rules.endpoint);
            let_go(spine, job.token());
        }
    }
}

/// SHA-256 over everything the caller gave but its key: the same key with another hash is a conflict. Zeros
/// without a key, for then nobody compares.
pub(crate) fn content_hash(draft: &Draft) -> [u8; 32] {
    if draft.client_key.is_none() {
        return [0; 32];
    }
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    part(draft.kind.as_str().as_bytes());
    match &draft.payload {
        Payload::Data(data) => {
            part(b"data");
            part(data);
        }
        Payload::Raw { body, content_type } => {
            part(content_type.as_bytes());
            part(body);
        }
    }
    part(draft.ordering_key.as_ref().map_or(&[], |key| key.as_str().as_bytes()));
    part(&draft.resource_version.map_or(-1, pombo_domain::event::ResourceVersion::get).to_be_bytes());
    part(&draft.deliver_at.map_or(0, Timestamp::as_micros).to_be_bytes());
    for target in draft.targets.iter().flatten() {
        part(target.0.as_bytes());
    }
    hasher.finalize().into()
}
