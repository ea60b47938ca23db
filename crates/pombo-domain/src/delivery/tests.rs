//! The response table, row by row.

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::attempt::Response;

fn answer(status: u16, retry_after: Option<&str>) -> Outcome {
    Outcome::Response(Response {
        status,
        retry_after: retry_after.map(|value| value.as_bytes().to_vec()),
        location: None,
        body: Bytes::new(),
        truncated: false,
    })
}

fn failure(class: AttemptClass) -> Outcome {
    Outcome::Failure { class, message: String::new() }
}

const NOW: Timestamp = Timestamp::from_secs(1_764_534_120);

fn judge(outcome: &Outcome, attempts_before: u16) -> Decision {
    let policy = RetryPolicy { jitter: crate::retry::Jitter::None, ..RetryPolicy::default() };
    let rules = Rules { policy: &policy, retry_client_errors: false };
    let progress = Progress { attempts_before, manual: None };
    decide(rules, progress, outcome, NOW, &mut StdRng::seed_from_u64(1))
}

fn retry_in(seconds: u64, attempts: u16) -> Verdict {
    Verdict::Retry { due_at: NOW.plus(Duration::from_secs(seconds)), attempts }
}

#[test]
fn two_hundreds_deliver() {
    for status in [200, 201, 202, 204, 299] {
        assert_eq!(judge(&answer(status, None), 0).verdict, Verdict::Delivered, "{status}");
    }
}

#[test]
fn redirects_are_dead_and_never_followed() {
    for status in [301, 302, 303, 307, 308, 304] {
        assert_eq!(judge(&answer(status, None), 0).verdict, Verdict::Dead { disable: None }, "{status}");
    }
}

#[test]
fn what_may_pass_is_retried_by_the_schedule() {
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        assert_eq!(judge(&answer(status, None), 0).verdict, retry_in(30, 1), "{status}");
    }
    for class in [
        AttemptClass::Timeout,
        AttemptClass::Connect,
        AttemptClass::Tls,
        AttemptClass::Dns,
        AttemptClass::Reset,
        AttemptClass::TooLarge,
    ] {
        assert_eq!(judge(&failure(class), 2).verdict, retry_in(600, 3), "{class:?}");
    }
}

#[test]
fn the_last_attempt_of_the_schedule_ends_dead() {
    assert_eq!(judge(&answer(500, None), 5).verdict, retry_in(86_400, 6));
    assert_eq!(judge(&answer(500, None), 6).verdict, Verdict::Dead { disable: None });
}

#[test]
fn gone_is_dead_and_disables_the_endpoint() {
    let gone = Verdict::Dead { disable: Some(DisabledReason::Gone) };
    assert_eq!(judge(&answer(410, None), 0).verdict, gone);
}

#[test]
fn other_client_errors_are_dead_unless_the_endpoint_retries_them() {
    for status in [400, 401, 403, 404, 409, 422, 451] {
        assert_eq!(judge(&answer(status, None), 0).verdict, Verdict::Dead { disable: None }, "{status}");
    }
    let policy = RetryPolicy::default();
    let rules = Rules { policy: &policy, retry_client_errors: true };
    let progress = Progress { attempts_before: 0, manual: None };
    let decision = decide(rules, progress, &answer(404, None), NOW, &mut StdRng::seed_from_u64(1));
    assert!(matches!(decision.verdict, Verdict::Retry { .. }));
}

#[test]
fn blocked_addresses_are_dead_at_once() {
    let decision = judge(&failure(AttemptClass::BlockedAddress), 0);
    assert_eq!(decision.verdict, Verdict::Dead { disable: None });
    assert!(!decision.retryable);
}

#[test]
fn retry_after_is_a_floor_and_holds_the_endpoint() {
    let decision = judge(&answer(429, Some("3600")), 0);
    assert_eq!(decision.verdict, retry_in(3600, 1));
    assert_eq!(decision.hold, Some(Duration::from_secs(3600)));
    // Shorter than the schedule: the schedule stands.
    assert_eq!(judge(&answer(503, Some("5")), 2).verdict, retry_in(600, 3));
}

#[test]
fn retry_after_elsewhere_means_nothing() {
    assert_eq!(judge(&answer(500, Some("3600")), 0).hold, None);
    assert_eq!(judge(&answer(404, Some("3600")), 0).hold, None);
}

#[test]
fn manual_failure_leaves_the_schedule_and_the_attempt_number() {
    let policy = RetryPolicy::default();
    let rules = Rules { policy: &policy, retry_client_errors: false };
    let due_at = NOW.plus(Duration::from_secs(77));
    let progress = Progress { attempts_before: 3, manual: Some(due_at) };
    for outcome in [answer(500, None), answer(404, None), failure(AttemptClass::Timeout)] {
        let decision = decide(rules, progress, &outcome, NOW, &mut StdRng::seed_from_u64(1));
        assert_eq!(decision.verdict, Verdict::Retry { due_at, attempts: 3 });
    }
    let decision = decide(rules, progress, &answer(200, None), NOW, &mut StdRng::seed_from_u64(1));
    assert_eq!(decision.verdict, Verdict::Delivered);
}
