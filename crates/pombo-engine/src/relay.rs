//! The relay: rows of the outbox become events (docs/protocol.md, rules R).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use pombo_domain::event::{Draft, Event, Identity, Origin, Payload, PayloadError, ResourceVersion};
use pombo_domain::event_type::EventType;
use pombo_domain::id::{EndpointId, SessionId, TenantId};
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::accept::AcceptResult;
use pombo_store::outbox::{OutboxRow, Rejection, RelayMark, RelayPlan, RelayRequest, Relayed};
use pombo_store::sessions::LeaseName;

use crate::clock::BootTime;
use crate::plan::{Planned, Planner, content_hash};
use crate::spine::{Patience, Quietly, Spine};

/// Pause between two looks while rows keep coming.
const BUSY: Duration = Duration::from_millis(8);
/// How long after the last row the relay stays busy.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Longest pause between two looks (C4).
const IDLE: Duration = Duration::from_millis(250);
/// How often the lease is looked at by who does not hold it.
const LEASE_EVERY: Duration = Duration::from_secs(1);
/// How often the next transaction scans from zero whatever the floor (R2).
const FULL_SCAN_EVERY: Duration = Duration::from_secs(60);

/// Runs until the engine drains.
pub(crate) async fn relay_loop(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    let mut relay = Relay::default();
    while !spine.is_draining() {
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

#[derive(Default)]
struct Relay {
    /// Epoch of the lease, and the session that holds it.
    lease: Option<(SessionId, i64)>,
    floor: Floor,
    last_rows_at: Option<BootTime>,
}

impl Relay {
    /// One transaction, or one try for the lease. Returns how long to pause.
    async fn step(&mut self, spine: &Spine) -> Result<Duration, StoreError> {
        let Some(session) = spine.session().filter(|session| !session.is_over()) else {
            self.lease = None;
            return Ok(LEASE_EVERY);
        };
        let epoch = match self.lease {
            Some((holder, epoch)) if holder == session.id => epoch,
            _ => match spine.store.hold_lease(LeaseName::OwnOutbox, session.id).await? {
                Some(epoch) => {
                    self.lease = Some((session.id, epoch));
                    self.floor.void();
                    epoch
                }
                None => return Ok(LEASE_EVERY),
            },
        };
        if spine.take_relay_floor_void() {
            self.floor.void();
        }
        self.transaction(spine, session.id, epoch).await
    }

    async fn transaction(
        &mut self,
        spine: &Spine,
        session: SessionId,
        lease_epoch: i64,
    ) -> Result<Duration, StoreError> {
        let Some(planner) = Planner::new(spine) else { return Ok(LEASE_EVERY) };
        let floor = self.floor.next();
        if floor > 0 && !spine.store.outbox_hint(floor).await? {
            return Ok(self.quiet_pause());
        }
        let request = RelayRequest {
            floor,
            limit: limits::RELAY_ROWS_MAX,
            bytes_max: limits::RELAY_BYTES_MAX,
            session,
            lease_epoch,
            config_version: planner.catalog.version,
        };
        let mut batch = Batch::default();
        let result = {
            let mut plan = |rows: &[OutboxRow]| batch.plan(&planner, rows);
            spine.store.relay(request, &mut plan).await
        };
        match result {
            Ok(Relayed::Committed { taken, results, mark }) => {
                batch.committed(spine, &results);
                self.last_rows_at = Some(BootTime::now());
                let drained = taken < request.limit;
                self.floor.seen(mark, drained);
                Ok(if drained { BUSY } else { Duration::ZERO })
            }
            Ok(Relayed::Empty(mark)) => {
                batch.forget(spine);
                self.floor.seen(mark, true);
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
            Err(error) => {
                batch.forget(spine);
                Err(error)
            }
        }
    }

    fn quiet_pause(&self) -> Duration {
        let now = BootTime::now();
        match self.last_rows_at {
            Some(last) if now.since(last) < BUSY_FOR => BUSY,
            _ => IDLE.mul_f64(crate::random::rng().random_range(0.6..=1.0)),
        }
    }
}

/// The lower bound of the next scan (R2).
#[derive(Default)]
struct Floor {
    value: i64,
    noted: Option<(RelayMark, BootTime)>,
    full_scan_at: Option<BootTime>,
    /// A noted mark whose transactions have all ended, and since when.
    passed: Option<(i64, BootTime)>,
}

impl Floor {
    /// The bound of the next scan; once a minute 0.
    fn next(&mut self) -> i64 {
        let now = BootTime::now();
        let due = self.full_scan_at.is_none_or(|last| now.since(last) >= FULL_SCAN_EVERY);
        if due {
            self.full_scan_at = Some(now);
            return 0;
        }
        self.value
    }

    /// After any abort, unknown answer, take-over or new epoch everything is scanned again.
    fn void(&mut self) {
        *self = Self::default();
    }

    /// A transaction was answered. Once a second a mark is noted; when every transaction that was running then
    /// has ended, a second more is gone, and a scan came back short, all up to its `seq` was seen.
    fn seen(&mut self, mark: RelayMark, drained: bool) {
        let now = BootTime::now();
        if let Some((noted, _)) = self.noted
            && mark.xmin >= noted.xmax
        {
            self.passed = Some((noted.seq_high, now));
            self.noted = None;
        }
        if let Some((seq, since)) = self.passed
            && drained
            && now.since(since) >= Duration::from_secs(1)
        {
            self.value = self.value.max(seq);
            self.passed = None;
        }
        if self.noted.is_none() && self.passed.is_none() {
            self.noted = Some((mark, now));
        }
    }
}

/// What the planner made of the rows of one transaction.
#[derive(Default)]
struct Batch {
    planned: Vec<Planned>,
    reasons: Vec<&'static str>,
}

impl Batch {
    /// May be called again when the transaction is repeated: what the first call reserved is given back.
    fn plan(&mut self, planner: &Planner<'_>, rows: &[OutboxRow]) -> RelayPlan {
        self.forget(planner.spine);
        let mut plan = RelayPlan::default();
        for (index, row) in rows.iter().enumerate() {
            match draft_of(planner, row) {
                Ok(draft) => {
                    let identity =
                        Identity { id: row.id, created_at: row.created_at, origin: Origin::Outbox };
                    let event = Event::from_draft(&draft, identity);
                    let planned = planner.plan(&draft, event, content_hash(&draft));
                    plan.events.push((index, planned.new.clone()));
                    self.planned.push(planned);
                }
                Err((reason, detail)) => {
                    self.reasons.push(reason);
                    plan.rejected.push(Rejection { index, reason, detail });
                }
            }
        }
        plan
    }

    fn committed(&mut self, spine: &Spine, results: &[AcceptResult]) {
        for (planned, result) in self.planned.drain(..).zip(results) {
            match result {
                AcceptResult::Created => {
                    spine.metrics.event_accepted(Origin::Outbox);
                    planned.queue(spine);
                }
                AcceptResult::Taken(earlier) => {
                    if !earlier.same_content {
                        spine.metrics.outbox_rejected("key_conflict");
                    }
                    planned.forget(spine);
                }
            }
        }
        for reason in self.reasons.drain(..) {
            tracing::warn!(
                "A row of the outbox cannot become an event ({reason}); it is kept in outbox_rejected."
            );
            spine.metrics.outbox_rejected(reason);
        }
    }

    fn forget(&mut self, spine: &Spine) {
        self.planned.drain(..).for_each(|planned| planned.forget(spine));
        self.reasons.clear();
    }
}

type Refusal = (&'static str, String);

fn refuse(reason: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Refusal {
    move |text| (reason, text.to_string())
}

/// Checks a row field by field, as the API checks a request.
fn draft_of(planner: &Planner<'_>, row: &OutboxRow) -> Result<Draft, Refusal> {
    let tenant = row.tenant.parse().map_err(|e| refuse("tenant")(&format!("tenant {e}")))?;
    let kind = EventType::parse_published(&row.kind).map_err(|e| refuse("type")(&format!("type {e}")))?;
    let payload = match &row.content_type {
        None => Payload::Data(row.data.clone()),
        Some(content_type) => Payload::Raw { body: row.data.clone(), content_type: content_type.clone() },
    };
    payload.check().map_err(|error| match error {
        PayloadError::TooLarge { .. } => ("too_large", format!("data {error}")),
        PayloadError::Json(_) => ("data", format!("data {error}")),
        PayloadError::ContentType => ("content_type", format!("content_type {error}")),
    })?;
    let ordering_key = optional(row.ordering_key.as_deref(), "ordering_key")?;
    let client_key = optional(row.key.as_deref(), "key")?;
    let resource_version = match row.resource_version {
        None => None,
        Some(value) => Some(ResourceVersion::new(value).ok_or_else(|| {
            ("resource_version", format!("resource_version must be between 0 and {}", ResourceVersion::MAX))
        })?),
    };
    let targets = match &row.endpoint_id {
        None => None,
        Some(text) => Some(vec![target_of(planner, &tenant, text)?]),
    };
    check_deliver_at(planner, row)?;
    Ok(Draft {
        tenant,
        kind,
        payload,
        client_key,
        targets,
        ordering_key,
        resource_version,
        deliver_at: row.deliver_at,
    })
}

fn optional<T: std::str::FromStr<Err = pombo_domain::name::NameError>>(
    text: Option<&str>,
    column: &'static str,
) -> Result<Option<T>, Refusal> {
    text.map(|text| text.parse().map_err(|error| (column, format!("{column} {error}")))).transpose()
}

fn target_of(
    planner: &Planner<'_>,
    tenant: &pombo_domain::name::TenantName,
    text: &str,
) -> Result<EndpointId, Refusal> {
    let id: EndpointId = text.parse().map_err(|error| ("endpoint", format!("endpoint_id {error}")))?;
    match planner.unknown_target(TenantId::of(tenant), &[id]) {
        None => Ok(id),
        Some(_) => Err(("endpoint", format!("endpoint_id: the tenant has no endpoint {id}"))),
    }
}

fn check_deliver_at(planner: &Planner<'_>, row: &OutboxRow) -> Result<(), Refusal> {
    let latest = planner.now.plus(limits::DELIVER_AT_MAX);
    match row.deliver_at {
        Some(at) if at > latest => Err(("deliver_at", "deliver_at must be at most 30 days ahead".to_owned())),
        _ => Ok(()),
    }
}
