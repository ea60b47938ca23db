//! Reading bodies: the cap of the route before the first byte, a bound over all bodies in memory, and JSON only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::listener::BodyFault;
use crate::problem::{Code, Problem};
use crate::state::AppState;

/// The bound over all bodies in memory.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    max: usize,
}

/// Bytes taken from the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self { used: Arc::default(), max }
    }

    fn reserve(&self, bytes: usize) -> Result<Reservation, Problem> {
        let mut reservation = Reservation { used: Arc::clone(&self.used), bytes: 0 };
        reservation.grow(bytes, self.max)?;
        Ok(reservation)
    }
}

impl Reservation {
    fn grow(&mut self, bytes: usize, max: usize) -> Result<(), Problem> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before + bytes > max {
            return Err(Problem::unavailable(
                "too many large bodies are being read right now; send it again",
                1,
            ));
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The JSON bytes of a request, at most `MAX` of them; empty where there is no body.
pub(crate) struct JsonBody<const MAX: usize> {
    pub(crate) bytes: Bytes,
    /// Held while the request is worked on.
    _reservation: Reservation,
}

impl<const MAX: usize> FromRequest<AppState> for JsonBody<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok(Self { bytes: Bytes::new(), _reservation: state.budget().reserve(0)? });
        }
        let declared = body.size_hint().exact();
        if declared.is_some_and(|bytes| bytes > MAX as u64) {
            return Err(too_large(MAX));
        }
        check_media_type(&parts.headers)?;
        read(body, declared.unwrap_or(0) as usize, MAX, state.budget()).await
    }
}

async fn read<const MAX: usize>(
    mut body: Body,
    declared: usize,
    max: usize,
    budget: &Budget,
) -> Result<JsonBody<MAX>, Problem> {
    let mut reservation = budget.reserve(declared)?;
    // Nearly every body comes in one piece, which is kept as it is; more pieces are joined.
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        let length = first.len() + joined.len() + data.len();
        if length > max {
            return Err(too_large(max));
        }
        if length > reservation.bytes {
            reservation.grow(length - reservation.bytes, budget.max)?;
        }
        if first.is_empty() && joined.is_empty() {
            first = data;
            continue;
        }
        if joined.is_empty() {
            joined.reserve(declared.max(length));
            joined.extend_from_slice(&first);
            first = Bytes::new();
        }
        joined.extend_from_slice(&data);
    }
    let bytes = if joined.is_empty() { first } else { joined.freeze() };
    Ok(JsonBody { bytes, _reservation: reservation })
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let detail = if !is_json(headers) {
        "send the body as JSON with the header `content-type: application/json`"
    } else if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        "send the body as it is: `content-encoding` is not taken"
    } else {
        return Ok(());
    };
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

fn too_large(max: usize) -> Problem {
    Problem::new(Code::TooLarge, format!("the body of this call may have at most {max} bytes"))
}

fn broken(error: &axum::Error) -> Problem {
    let source = std::error::Error::source(error);
    match source.and_then(|source| source.downcast_ref::<BodyFault>()) {
        Some(BodyFault::Timeout) => {
            Problem::new(Code::Timeout, "the body did not arrive in time; nothing happened")
        }
        _ => Problem::new(Code::BadRequest, "the body broke off before its end; nothing happened"),
    }
}

/// `application/json`, or another type whose suffix says JSON; UTF-8 if a charset is named.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(text) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let is_json_type = kind.eq_ignore_ascii_case("application/json")
        || kind.len() > 17
            && kind[..12].eq_ignore_ascii_case("application/")
            && kind[kind.len() - 5..].eq_ignore_ascii_case("+json");
    is_json_type
        && parts.filter_map(|parameter| parameter.split_once('=')).all(|(name, value)| {
            !name.eq_ignore_ascii_case("charset") || value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
}

/// The `{id}` of the path.
pub(crate) struct PathId<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for PathId<T>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::field("id", "invalid", "must be percent-encoded UTF-8"))?;
        text.parse().map(Self).map_err(|error: T::Err| Problem::field("id", "invalid", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(content_type: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().expect("a header value"));
        headers
    }

    #[test]
    fn only_json_in_utf8_is_taken() {
        for text in ["application/json", "Application/JSON; charset=UTF-8", "application/problem+json"] {
            assert!(is_json(&headers(text)), "{text}");
        }
        for text in
            ["text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded", "json"]
        {
            assert!(!is_json(&headers(text)), "{text}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    #[test]
    fn the_budget_is_given_back() {
        let budget = Budget::new(100);
        let held = budget.reserve(80).expect("room");
        assert_eq!(budget.reserve(30).expect_err("full").status(), 503);
        drop(held);
        assert!(budget.reserve(100).is_ok());
    }
}
