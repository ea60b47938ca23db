//! What this process knows it owns (docs/protocol.md S6 b, K2).
//!
//! Every token is entered before the transaction that may make it the owner commits, and leaves when the
//! write that ends the ownership was answered. The audit compares this with the database: what the database
//! says we own and is not here was forgotten (an answer to COMMIT was lost) and is released.

use std::collections::HashMap;
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
    /// Enters tokens before the commit that may make them ours (accept, relay).
    pub(crate) fn register(&self, tokens: impl IntoIterator<Item = Token>) {
        let mut held = self.lock();
        for token in tokens {
            held.entry(token.id).or_insert(Held { token, next: None });
        }
    }

    /// Enters a claimed job.
    pub(crate) fn enter(&self, job: Box<Job>) -> Entered {
        let mut held = self.lock();
        match held.entry(job.token().id) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Held { token: job.token(), next: None });
                Entered::Fresh(job)
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => {
                occupied.get_mut().next = Some(job);
                Entered::Waits
            }
        }
    }

    /// Ends the hold of exactly this token (K2: an answer removes only its own). Gives the job that waited.
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
