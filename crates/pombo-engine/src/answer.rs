//! What is kept of an exchange: the part of an attempt's record that depends on the answer alone.

use std::time::Duration;

use bytes::Bytes;

use pombo_domain::attempt::{AttemptClass, Exchange, Outcome, Phases};
use pombo_domain::endpoint::{Endpoint, StoreResponses};
use pombo_domain::limits;

/// An exchange as it is recorded.
pub(crate) struct Answer {
    pub(crate) status: Option<u16>,
    pub(crate) class: AttemptClass,
    pub(crate) message: Option<String>,
    pub(crate) body: Option<Bytes>,
    pub(crate) truncated: bool,
    pub(crate) duration: Duration,
    pub(crate) phases: Phases,
}

impl Answer {
    /// What the endpoint's `storeResponses` lets be kept, in a form that every database takes.
    pub(crate) fn of(exchange: Exchange, endpoint: &Endpoint) -> Self {
        let (class, status) = (exchange.outcome.class(), exchange.outcome.status());
        let keeps = match endpoint.store_responses {
            StoreResponses::All => true,
            StoreResponses::Failures => class != AttemptClass::Success,
            StoreResponses::None => false,
        };
        let (message, body, truncated) = match exchange.outcome {
            Outcome::Response(response) => {
                let message = response.location.map(|location| format!("Location: {location}"));
                (message, keeps.then_some(response.body), keeps && response.truncated)
            }
            Outcome::Failure { message, .. } => (Some(message), None, false),
        };
        Self {
            status,
            class,
            message: message.map(|message| fit(&message)),
            body: body.filter(|body| !body.is_empty()),
            truncated,
            duration: exchange.duration,
            phases: exchange.phases,
        }
    }
}

/// A message that every database takes: no NUL, cut on a character boundary.
fn fit(message: &str) -> String {
    let mut text = message.replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(limits::MESSAGE_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_on_a_character_and_hold_no_nul() {
        assert_eq!(fit("a\0b"), "a\u{fffd}b");
        let long = fit(&"é".repeat(1000));
        assert_eq!(long.len(), limits::MESSAGE_BYTES_MAX);
        assert!(fit(&"€".repeat(1000)).len() <= limits::MESSAGE_BYTES_MAX);
    }
}
