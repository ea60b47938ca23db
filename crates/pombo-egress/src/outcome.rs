//! How an exchange ends: the stage it is in, the time each took, and the class of each failure.

use std::error::Error;
use std::io;
use std::time::Duration;

use pombo_domain::attempt::{AttemptClass, Outcome, Phases};
use pombo_domain::limits::MESSAGE_BYTES_MAX;
use tokio::time::Instant;

use crate::address_policy::UrlRefusal;
use crate::tls;

/// What an exchange is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Resolve,
    Connect,
    Tls,
    Answer,
    Body,
}

/// The stage of one exchange and the times of those before. It lives outside the future that the deadline
/// drops, so that a time-out can say where the time went.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    phases: Phases,
    current: Option<(Stage, Instant)>,
}

impl Progress {
    /// Ends the stage before and begins another.
    pub(crate) fn enter(&mut self, stage: Stage) {
        let now = Instant::now();
        self.end_stage(now);
        self.current = Some((stage, now));
    }

    /// Forgets a try on a kept connection that the request never went out on.
    pub(crate) fn start_over(&mut self) {
        *self = Self::default();
    }

    /// Ends the last stage and gives all the times.
    pub(crate) fn finish(mut self, now: Instant) -> Phases {
        self.end_stage(now);
        self.phases
    }

    fn end_stage(&mut self, now: Instant) {
        let Some((stage, since)) = self.current.take() else { return };
        let slot = match stage {
            Stage::Resolve => &mut self.phases.dns,
            Stage::Connect => &mut self.phases.connect,
            Stage::Tls => &mut self.phases.tls,
            Stage::Answer => &mut self.phases.first_byte,
            Stage::Body => &mut self.phases.body,
        };
        *slot = Some(now.saturating_duration_since(since));
    }

    /// The failure that the total deadline is.
    pub(crate) fn deadline_passed(&self, timeout: Duration) -> Failure {
        let doing = match self.current {
            None | Some((Stage::Resolve, _)) => "resolving the name",
            Some((Stage::Connect, _)) => "connecting",
            Some((Stage::Tls, _)) => "the TLS handshake",
            Some((Stage::Answer, _)) => "waiting for the response",
            Some((Stage::Body, _)) => "reading the response body",
        };
        Failure::new(
            AttemptClass::Timeout,
            format!("the deadline of {} passed while {doing}", seconds(timeout)),
        )
    }
}

/// A duration as people write it: `10 s`, `250 ms`.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// An exchange without a status, or without an end.
#[derive(Debug)]
pub(crate) struct Failure {
    class: AttemptClass,
    message: String,
}

impl Failure {
    pub(crate) fn new(class: AttemptClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        Self { class, message }
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        Outcome::Failure { class: self.class, message: self.message }
    }
}

/// A target that the address policy refuses. Which address it was, and why, is the operator's to know.
pub(crate) fn blocked() -> Failure {
    Failure::new(AttemptClass::BlockedAddress, "the address policy of this installation refuses the target")
}

/// A stored URL that the policy, as it is now, would not take at creation.
pub(crate) fn of_refused_url(refusal: &UrlRefusal) -> Failure {
    match refusal {
        UrlRefusal::Address(_) => blocked(),
        other => Failure::new(AttemptClass::BlockedAddress, format!("the URL of the endpoint {other}")),
    }
}

/// The failure of a request that was written, at least in part, on a connection that then failed.
///
/// The class comes from the types in the error's chain, never from its text.
pub(crate) fn of_exchange(error: &hyper::Error, is_reused: bool) -> Failure {
    if error.is_parse_too_large() {
        return Failure::new(AttemptClass::TooLarge, "the head of the response is over 64 headers or 64 KiB");
    }
    if error.is_parse() {
        return Failure::new(
            AttemptClass::Reset,
            "the receiver answered with something that is not HTTP/1.1",
        );
    }
    if let Some(tls_error) = find_tls(error) {
        return Failure::new(AttemptClass::Tls, tls::reason(tls_error));
    }
    let message = if is_reused {
        // The receiver may have begun to work on it: only the retry policy may send it again.
        "the receiver closed the kept connection before it answered"
    } else if find_io(error).is_some_and(|kind| kind == io::ErrorKind::ConnectionReset) {
        "the receiver reset the connection before it answered"
    } else {
        "the receiver closed the connection before it answered"
    };
    Failure::new(AttemptClass::Reset, message)
}

/// The failure of a TLS handshake.
pub(crate) fn of_handshake(error: &io::Error) -> Failure {
    let reason = match find_tls(error) {
        Some(tls_error) => tls::reason(tls_error),
        None => "the receiver closed the connection during the TLS handshake",
    };
    Failure::new(AttemptClass::Tls, reason)
}

/// The failure of a TCP connection.
pub(crate) fn of_connect(error: &io::Error) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "the receiver refused the connection",
        io::ErrorKind::ConnectionReset => "the receiver reset the connection",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "the receiver cannot be reached"
        }
        io::ErrorKind::TimedOut => "the connection timed out",
        _ => "the connection failed",
    };
    Failure::new(AttemptClass::Connect, reason)
}

/// Links of an error's chain that are looked at; real chains have four.
const CHAIN_MAX: usize = 16;

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let link = next?;
        // `io::Error::source` skips the error it was made from and gives that one's source.
        next = match link.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => link.source(),
        };
        Some(link)
    })
    .take(CHAIN_MAX)
}

fn find_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|link| link.downcast_ref())
}

fn find_io(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    chain(error).find_map(|link| link.downcast_ref::<io::Error>()).map(io::Error::kind)
}
