//! The events of the bench. Each carries the number of its run, its own number, and the moment it was sent, so
//! that the receiver can count exactly and measure without asking anybody.

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};

use super::messages::Layout;

/// Makes the delivered body about 370 bytes long.
pub(super) const PADDING: &str = "A pigeon carries what it is given, byte for byte, and comes back to the loft it left. \
     It does not read the letter, does not lose it on the way, and brings it once; if the window is shut, it waits \
     and tries again.";
/// Type of every event.
pub(super) const KIND: &str = "order.paid.v1";
/// Where the mark begins in a body; `data` is kept byte for byte.
const BEGINS: &[u8] = b"{\"run\":";

/// What is written in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Number of the run.
    pub(super) run: u64,
    /// Number within the run.
    pub(super) number: u64,
    /// When it was sent; 0 where that says nothing.
    pub(super) sent_at: i64,
}

/// The machine's monotonic clock, in microseconds: the same in every process.
pub(super) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// `data` of an event.
pub(super) fn data(mark: Mark) -> String {
    let Mark { run, number, sent_at } = mark;
    format!(r#"{{"run":{run},"n":{number},"at":{sent_at},"text":"{PADDING}"}}"#)
}

/// Body of `POST /v1/events`.
pub(super) fn request(mark: Mark, tenants: u64) -> Bytes {
    let tenant = Layout::tenant(mark.number % tenants);
    format!(r#"{{"tenant":"{tenant}","type":"{KIND}","data":{}}}"#, data(mark)).into()
}

/// A body as a receiver gets it.
pub(super) fn delivered(mark: Mark) -> Bytes {
    let data = data(mark);
    format!(
        r#"{{"id":"evt_01h455vb4pex5vsknk084sn02q","type":"{KIND}","createdAt":"2026-01-01T00:00:00.000Z","data":{data}}}"#
    )
    .into()
}

/// Reads the mark in a body.
pub(super) fn mark_of(body: &[u8]) -> Option<Mark> {
    let start = body.windows(BEGINS.len()).position(|window| window == BEGINS)?;
    let (run, rest) = digits(&body[start + BEGINS.len()..])?;
    let (number, rest) = digits(rest.strip_prefix(b",\"n\":")?)?;
    let (sent_at, _) = digits(rest.strip_prefix(b",\"at\":")?)?;
    Some(Mark { run, number, sent_at: i64::try_from(sent_at).ok()? })
}

fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..length]).ok()?.parse().ok()?;
    Some((number, &text[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_from_requests_and_deliveries() {
        let mark = Mark { run: 3, number: 120_001, sent_at: 4_567_890_123 };
        assert_eq!(mark_of(&delivered(mark)), Some(mark));
        assert_eq!(mark_of(&request(mark, 8)), Some(mark));
        assert_eq!(mark_of(b"{\"run\":3,\"n\":"), None);
        assert_eq!(mark_of(b"{}"), None);
    }

    #[test]
    fn delivered_body_has_the_size_that_is_named() {
        let length = delivered(Mark { run: 1, number: 50_000, sent_at: now() }).len();
        assert!((350..=390).contains(&length), "{length}");
    }

    #[test]
    fn requests_are_json_dealt_out_over_tenants() {
        let body = request(Mark { run: 1, number: 11, sent_at: 5 }, 8);
        let value: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(value["tenant"], "bench-3");
        assert_eq!(value["data"]["n"], 11);
    }
}
