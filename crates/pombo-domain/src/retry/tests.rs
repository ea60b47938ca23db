//! Schedules, jitter and Retry-After.

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

fn rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

fn read(json: &str) -> Result<RetryPolicy, RetryError> {
    serde_json::from_str::<RetryDocument>(json).expect("the shape of a policy").try_into()
}

#[test]
fn schedule_length_is_the_number_of_attempts() {
    let policy = read(r#"{"schedule":["5s","30s"],"jitter":"none"}"#).expect("a policy");
    assert_eq!(policy.attempts(), 2);
    assert_eq!(policy.delay_before(1, &mut rng()), Some(Duration::from_secs(5)));
    assert_eq!(policy.delay_before(2, &mut rng()), Some(Duration::from_secs(30)));
    assert_eq!(policy.delay_before(3, &mut rng()), None);
    assert_eq!(policy.delay_before(0, &mut rng()), None);
}

#[test]
fn exponential_grows_to_its_cap() {
    let json = r#"{"exponential":{"base":"30s","factor":2,"cap":"256m","attempts":20},"jitter":"none"}"#;
    let policy = read(json).expect("a policy");
    let seconds: Vec<_> =
        (1..=20).filter_map(|n| policy.delay_before(n, &mut rng())).map(|delay| delay.as_secs()).collect();
    assert_eq!(seconds[..5], [0, 30, 60, 120, 240]);
    assert_eq!(seconds[18..], [15_360, 15_360]);
}

#[test]
fn policies_out_of_bounds_are_refused() {
    for json in [
        "{}",
        r#"{"schedule":["0s"],"exponential":{"base":"1s","factor":2,"cap":"1m","attempts":3}}"#,
        r#"{"schedule":[]}"#,
        r#"{"schedule":["8d"]}"#,
        r#"{"schedule":["soon"]}"#,
        r#"{"exponential":{"base":"1s","factor":0,"cap":"1m","attempts":3}}"#,
        r#"{"exponential":{"base":"1s","factor":2,"cap":"1m","attempts":0}}"#,
        r#"{"exponential":{"base":"1s","factor":2,"cap":"1m","attempts":51}}"#,
        r#"{"schedule":["0s"],"jitter":"some"}"#,
        r#"{"schedule":["0s"],"jitter":{"percent":101}}"#,
    ] {
        assert!(read(json).is_err(), "{json}");
    }
}

#[test]
fn documents_come_back_as_they_went_in() {
    for json in [
        r#"{"schedule":["0s","30s","2m"],"jitter":"full"}"#,
        r#"{"exponential":{"base":"30s","factor":2,"cap":"256m","attempts":10},"jitter":{"percent":20}}"#,
    ] {
        let shown =
            serde_json::to_string(&RetryDocument::from(&read(json).expect("a policy"))).expect("JSON");
        assert_eq!(shown, json);
    }
}

#[test]
fn retry_after_is_read_capped_or_ignored() {
    let now = Timestamp::from_secs(784_111_777); // Sun, 06 Nov 1994 08:49:37 GMT
    let read = |text: &str| parse_retry_after(text.as_bytes(), now);
    assert_eq!(read("120"), Some(Duration::from_secs(120)));
    assert_eq!(read(" 120 "), Some(Duration::from_secs(120)));
    assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
    let cap = Some(limits::RETRY_AFTER_MAX);
    assert_eq!(read("315360000"), cap);
    assert_eq!(read("99999999999999999999999999"), cap);
    assert_eq!(read("Sat, 06 Nov 2094 08:49:37 GMT"), cap);
    for ignored in ["", "0", "-5", "soon", "1.5", "+5", "Sun, 06 Nov 1994 08:48:37 GMT", "\u{661}"] {
        assert_eq!(read(ignored), None, "{ignored:?}");
    }
    assert_eq!(parse_retry_after(b"\xff\xfe", now), None);
}

proptest! {
    #[test]
    fn jitter_stays_within_its_kind(millis in 0_u64..604_800_000, seed: u64, percent in 0_u8..=100) {
        let delay = Duration::from_millis(millis);
        let mut rng = StdRng::seed_from_u64(seed);
        prop_assert_eq!(Jitter::None.apply(delay, &mut rng), delay);
        prop_assert!(Jitter::Full.apply(delay, &mut rng) <= delay);
        let equal = Jitter::Equal.apply(delay, &mut rng);
        prop_assert!(equal >= delay / 2 && equal <= delay);
        let spread = delay.mul_f64(f64::from(percent) / 100.0) + Duration::from_micros(1);
        let jittered = Jitter::Percent(percent).apply(delay, &mut rng);
        prop_assert!(jittered <= delay + spread && jittered + spread >= delay);
    }

    #[test]
    fn retry_after_never_exceeds_its_cap(value: Vec<u8>, now in 0_i64..4_000_000_000) {
        if let Some(wait) = parse_retry_after(&value, Timestamp::from_secs(now)) {
            prop_assert!(wait > Duration::ZERO && wait <= limits::RETRY_AFTER_MAX);
        }
    }
}
