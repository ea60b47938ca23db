//! The sweep: heals what dead processes, lost answers and missed hints left behind (docs/protocol.md S3–S6,
//! P1, P3, P4). No state needs a restart to move.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use pombo_domain::delivery::Token;
use pombo_domain::id::EndpointId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::parking::Wake;
use pombo_store::sessions::{LeaseName, Release};

use crate::clock::BootTime;
use crate::returns::let_go;
use crate::spine::{Patience, Quietly, Spine, rules_of};

/// Time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Time between two rounds of upkeep (partitions ahead, old sessions).
const UPKEEP_EVERY: Duration = Duration::from_secs(3600);
/// Days of history's partitions made ahead (T7).
const PARTITION_DAYS: u16 = 7;
/// Chunks one sweep works through before it gives others a turn.
const CHUNKS_MAX: u32 = 100;
/// Backlogs woken at once; each wake is a transaction of its own.
const WAKES_AT_ONCE: usize = 4;
/// Shortest time between two rounds of wakes.
const WAKE_PACE: Duration = Duration::from_millis(2);
/// How soon the lanes are asked again while rows are expected that may not come.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Sweeps until the engine drains.
pub(crate) async fn sweep_loop(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    let mut upkeep_at: Option<BootTime> = None;
    while !spine.is_draining() {
        match sweep(&spine, &mut upkeep_at).await {
            Ok(()) => {
                patience.reset();
                spine.pause(&spine.signals.audit, SWEEP_EVERY).await;
            }
            Err(error) => {
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "The sweep was not complete and will be repeated: {error}.");
                }
                // Without the hint: the error may itself ask for an audit, and the two would chase each other.
                tokio::select! { () = tokio::time::sleep(patience.next()) => {}, () = spine.drained() => {} }
            }
        }
    }
}

/// Every part is tried whatever the others came to; gives the first error.
async fn sweep(spine: &Spine, upkeep_at: &mut Option<BootTime>) -> Result<(), StoreError> {
    let mut result = Ok(());
    let mut note = |part: Result<(), StoreError>| {
        if let Err(error) = part {
            spine.note_error(&error);
            result = std::mem::replace(&mut result, Ok(())).and(Err(error));
        }
    };
    note(bury(spine).await);
    note(audit(spine).await);
    note(cancel_deleted(spine).await);
    if spine.config.roles.deliver {
        note(level(spine).await);
    }
    note(spine.store.sample().await.map(|sample| spine.metrics.take_sample(&sample)));
    let now = BootTime::now();
    if upkeep_at.is_none_or(|last| now.since(last) >= UPKEEP_EVERY) {
        let upkeep = upkeep(spine).await;
        if upkeep.is_ok() {
            *upkeep_at = Some(now);
        }
        note(upkeep);
    }
    result
}

/// Declares sessions dead whose lease ran out, and releases what dead sessions own (S3, S4). Rows may turn up
/// late (an accept that was in flight when its session died), so this runs whether anyone was buried or not.
async fn bury(spine: &Spine) -> Result<(), StoreError> {
    for session in spine.store.bury_expired_sessions().await? {
        tracing::warn!(
            session = session.0,
            "Session {session} of another process ran out; its deliveries are taken over."
        );
        spine.metrics.leases_expired.inc();
    }
    for _ in 0..CHUNKS_MAX {
        let released = spine.store.release_dead(limits::SWEEP_ROWS_MAX).await?;
        if released > 0 {
            spine.signals.due.notify_one();
        }
        if released < limits::SWEEP_ROWS_MAX {
            break;
        }
    }
    Ok(())
}

/// S6. First the database, then memory, with no claim of our own between the two: what the database says is
/// ours and memory does not know was forgotten, and is released by token.
///
/// Why it is safe: every token is entered in `holdings` before the commit that makes the row ours can be
/// seen (accepts and relays register, claims hold `claiming` until they have entered), and leaves only after
/// the write that ends the ownership was answered. So a row read in (a) that is unknown in (b) either changed
/// hands since (the token does not match any more, nothing happens) or belongs to nobody's memory.
async fn audit(spine: &Spine) -> Result<(), StoreError> {
    let Some(session) = spine.session().filter(|session| !session.is_over()) else { return Ok(()) };
    let owned = spine.store.owned(session.id).await?;
    let unknown: Vec<Token> = {
        let _no_claim_outstanding = spine.claiming.lock().await;
        owned.into_iter().filter(|token| !spine.holdings.knows(*token)).collect()
    };
    for chunk in unknown.chunks(limits::SWEEP_ROWS_MAX as usize) {
        // Not a rescue: this process lives, and has not tried to send them.
        let released = spine.store.release(chunk, Release::HandBack).await?;
        if released > 0 {
            tracing::warn!(
                "{released} deliveries were owned here and unknown (an answer to a commit was lost); they are released."
            );
            spine.signals.due.notify_one();
        }
    }
    Ok(())
}

/// The sweep cancels every live row of a deleted endpoint, also those that were inserted after the deletion (P3).
async fn cancel_deleted(spine: &Spine) -> Result<(), StoreError> {
    for _ in 0..CHUNKS_MAX {
        if spine.store.cancel_deleted(limits::SWEEP_ROWS_MAX).await? < limits::SWEEP_ROWS_MAX {
            break;
        }
    }
    Ok(())
}

/// P1: wake-ups are level-triggered. Every endpoint at home here with parked rows is looked at, whatever hints
/// were lost.
async fn level(spine: &Spine) -> Result<(), StoreError> {
    spine.lanes.tidy(spine.now());
    let (catalog, homes) = (spine.catalog(), spine.homes());
    for endpoint in spine.store.parked_endpoints(u32::MAX).await? {
        if let Some(target) = catalog.target(endpoint)
            && target.is_active()
            && homes.holds(target.shard)
        {
            spine.lanes.note_backlog(rules_of(target));
        }
    }
    Ok(())
}

/// Partitions ahead by who holds the maintenance lease, and old sessions.
async fn upkeep(spine: &Spine) -> Result<(), StoreError> {
    let Some(session) = spine.session() else { return Ok(()) };
    if spine.store.hold_lease(LeaseName::Maintenance, session.id).await?.is_some() {
        spine.store.prepare_partitions(PARTITION_DAYS).await?;
        spine.store.forget_sessions().await?;
    }
    Ok(())
}

/// Wakes the backlogs that lanes ask for, until the engine drains.
pub(crate) async fn wake_loop(spine: Arc<Spine>) {
    let mut quietly = Quietly::default();
    loop {
        let wakes = spine.lanes.take_wakes(spine.now()).into_iter();
        let mut results = stream::iter(wakes.map(|(endpoint, room)| wake(&spine, endpoint, room)))
            .buffer_unordered(WAKES_AT_ONCE);
        while let Some(result) = results.next().await {
            if let Err(error) = result {
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "A backlog could not be woken; the sweep tries again: {error}.");
                }
            }
        }
        // A backlog whose rows all keep a later time is worked through in many wakes; this paces them.
        tokio::time::sleep(WAKE_PACE).await;
        let longest = if spine.lanes.expects() { LOOK_AGAIN } else { SWEEP_EVERY };
        if spine.pause(&spine.lanes.wakes, longest).await {
            return;
        }
    }
}

async fn wake(spine: &Spine, endpoint_id: EndpointId, room: u32) -> Result<(), StoreError> {
    let woken = spine.store.wake(Wake { endpoint_id, room }).await;
    let found = woken.as_ref().ok().map(|woken| (woken.woken, woken.more));
    spine.lanes.woken(endpoint_id, found, spine.now());
    if woken?.woken > 0 {
        spine.signals.due.notify_one();
    }
    Ok(())
}

/// Cancels the live rows of an endpoint that was just deleted, chunk by chunk (P3).
pub(crate) async fn cancel_rows(spine: Arc<Spine>, endpoint: EndpointId) {
    for job in spine.lanes.drain(|job| job.delivery.endpoint_id == endpoint) {
        let_go(&spine, job.token());
    }
    loop {
        match spine.store.cancel_rows_of(endpoint, limits::SWEEP_ROWS_MAX).await {
            Ok(cancelled) if cancelled == limits::SWEEP_ROWS_MAX => {}
            Ok(_) => return,
            Err(error) => {
                // The sweep goes on where this stops.
                spine.note_error(&error);
                return;
            }
        }
    }
}
