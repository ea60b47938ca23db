//! What this process knows it owns (docs/protocol.md S6 b, K2).
//!
//! Every token is entered before the transaction that may make it the owner commits, and leaves when the
//! write that ends the ownership was answered. The audit compares this with the database: what the database
//! says we own and is not here was forgotten (an answer to COMMIT was lost) and is released.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use pombo_domain::delivery::Token;
use pombo_domain::id::DeliveryId;

use crate::lanes::Job;

/// A delivery that is held, under the token of its oldest work that is not finished.
struct Held {
    token: Token,
    /// A newer token of the same delivery that came while older work was in flight or unwritten. It waits:
    /// one POST per delivery at a time (K2).
    next: Option<Box<Job>>,
}

/// Everything held.
#[derive(Default)]
pub(crate) struct Holdings {
    held: Mutex<HashMap<DeliveryId, Held>>,
}

/// What entering a claimed job came to.
pub(crate) enum Entered {
    /// It may be queued.
    Fresh(Box<Job>),
    /// Older work of the same delivery is not finished; the job waits inside.
    Waits,
}

impl Holdings {
    /// Enters the token of a delivery about to be inserted, before the commit that may make it ours (accept,
    /// relay). `false` if the delivery has work here already: it exists, and must not be born claimed.
    #[must_use]
    pub(crate) fn register(&self, token: Token) -> bool {
        match self.lock().entry(token.id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Held { token, next: None });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Enters a claimed job.
    pub(crate) fn enter(&self, job: Box<Job>) -> Entered {
        let mut held = self.lock();
        match held.entry(job.token().id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Held { token: job.token(), next: None });
                Entered::Fresh(job)
            }
            Entry::Occupied(mut occupied) => {
                // A job that waits here already is older, and its token void: the row was claimed again since.
                occupied.get_mut().next = Some(job);
                Entered::Waits
            }
        }
    }

    /// Ends the hold of exactly this token (K2: an answer removes only its own). Gives the job that waited, which
    /// is held from now on: it must be queued or given back.
    #[must_use]
    pub(crate) fn leave(&self, token: Token) -> Option<Job> {
        let mut held = self.lock();
        if held.get(&token.id)?.token != token {
            return None;
        }
        let job = *held.remove(&token.id)?.next?;
        held.insert(token.id, Held { token: job.token(), next: None });
        Some(job)
    }

    /// Whether this token is known here, as the current or as the waiting one.
    pub(crate) fn knows(&self, token: Token) -> bool {
        self.lock().get(&token.id).is_some_and(|held| {
            held.token == token || held.next.as_ref().is_some_and(|job| job.token() == token)
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<DeliveryId, Held>> {
        self.held.lock().expect("nobody panics while holding the map")
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use pombo_domain::clock::Timestamp;
    use pombo_domain::id::{EndpointId, EventId, SessionId, TenantId};
    use pombo_store::claim::ClaimedDelivery;

    use super::*;

    fn token(generation: i32) -> Token {
        Token { id: DeliveryId(Uuid::from_u128(1)), owner: SessionId(1), generation }
    }

    fn job(generation: i32) -> Box<Job> {
        let at = Timestamp::from_secs(0);
        let delivery = ClaimedDelivery {
            token: token(generation),
            event_id: EventId(Uuid::from_u128(2)),
            event_at: at,
            kind: "order.paid".parse().expect("a type"),
            endpoint_id: EndpointId(Uuid::from_u128(3)),
            tenant_id: TenantId(Uuid::from_u128(4)),
            created_at: at,
            attempts: 0,
            rescues: 0,
            not_before: None,
        };
        Box::new(Job { delivery, content: None, manual: None })
    }

    #[test]
    fn a_newer_token_waits_until_the_older_is_let_go() {
        let holdings = Holdings::default();
        assert!(matches!(holdings.enter(job(1)), Entered::Fresh(_)));
        assert!(matches!(holdings.enter(job(3)), Entered::Waits));
        assert!(holdings.knows(token(1)) && holdings.knows(token(3)), "the audit knows both");
        let waited = holdings.leave(token(1)).expect("it waited");
        assert_eq!(waited.token(), token(3));
        assert!(!holdings.knows(token(1)) && holdings.knows(token(3)));
        assert!(holdings.leave(token(3)).is_none());
        assert!(!holdings.knows(token(3)));
    }

    #[test]
    fn an_answer_removes_only_its_own_token() {
        let holdings = Holdings::default();
        assert!(matches!(holdings.enter(job(3)), Entered::Fresh(_)));
        assert!(holdings.leave(token(1)).is_none(), "the answer to an older flush");
        assert!(holdings.knows(token(3)));
    }

    #[test]
    fn the_newest_of_several_that_wait_is_the_one_that_counts() {
        let holdings = Holdings::default();
        assert!(matches!(holdings.enter(job(1)), Entered::Fresh(_)));
        assert!(matches!(holdings.enter(job(3)), Entered::Waits));
        assert!(matches!(holdings.enter(job(5)), Entered::Waits));
        assert!(!holdings.knows(token(3)), "void: the audit may say so");
        assert_eq!(holdings.leave(token(1)).map(|job| job.token()), Some(token(5)));
    }

    #[test]
    fn a_delivery_with_work_here_is_not_registered_again() {
        let holdings = Holdings::default();
        assert!(holdings.register(token(1)));
        assert!(!holdings.register(token(1)));
        assert!(matches!(holdings.enter(job(2)), Entered::Waits));
    }
}
