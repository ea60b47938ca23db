//! What went wrong, told to the caller: RFC 9457 `application/problem+json`.

use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use pombo_store::StoreError;

use crate::shapes::{FieldError, ProblemDocument};

/// The kinds of problems. The word becomes `type: "/errors/<word>"` and never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The body is not JSON.
    NotJson,
    /// The request cannot be read: a header, the target, a body that broke off.
    BadRequest,
    /// No key, or one that is unknown.
    Unauthorized,
    /// The key may not do this.
    Forbidden,
    /// The key is bound to another tenant.
    OtherTenant,
    /// No such route, or nothing with this id for this caller.
    NotFound,
    /// The route has other methods.
    MethodNotAllowed,
    /// The body did not arrive in time.
    Timeout,
    /// The same `id` with other content.
    IdConflict,
    /// The delivery is being sent.
    BeingSent,
    /// The delivery is settled.
    AlreadySettled,
    /// The endpoint is paused or disabled.
    EndpointNotActive,
    /// The endpoint was deleted.
    EndpointDeleted,
    /// The event's body is gone.
    BodyMissing,
    /// Somebody else kept changing the same thing.
    Changed,
    /// More bytes than allowed.
    TooLarge,
    /// The body is not `application/json`.
    UnsupportedMediaType,
    /// Fields are wrong.
    Invalid,
    /// A bug, or something new in the database.
    Internal,
    /// The database is away, or this process cannot do it right now.
    Unavailable,
    /// It is unknown whether the commit happened.
    OutcomeUnknown,
}

impl Code {
    /// Every code, for the reference.
    pub(crate) const ALL: [Self; 21] = [
        Self::NotJson,
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::OtherTenant,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Timeout,
        Self::IdConflict,
        Self::BeingSent,
        Self::AlreadySettled,
        Self::EndpointNotActive,
        Self::EndpointDeleted,
        Self::BodyMissing,
        Self::Changed,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::Internal,
        Self::Unavailable,
        Self::OutcomeUnknown,
    ];

    /// Status, word and title.
    pub(crate) const fn facts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::NotJson => (StatusCode::BAD_REQUEST, "not-json", "The body is not JSON"),
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad-request", "The request cannot be read"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "An API key is needed"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The API key may not do this"),
            Self::OtherTenant => {
                (StatusCode::FORBIDDEN, "other-tenant", "The API key belongs to another tenant")
            }
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "Not found"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not allowed here")
            }
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "timeout", "The body did not arrive in time"),
            Self::IdConflict => {
                (StatusCode::CONFLICT, "id-conflict", "The id was used before with other content")
            }
            Self::BeingSent => (StatusCode::CONFLICT, "being-sent", "The delivery is being sent right now"),
            Self::AlreadySettled => {
                (StatusCode::CONFLICT, "already-settled", "The delivery is settled already")
            }
            Self::EndpointNotActive => {
                (StatusCode::CONFLICT, "endpoint-not-active", "The endpoint is paused or disabled")
            }
            Self::EndpointDeleted => (StatusCode::CONFLICT, "endpoint-deleted", "The endpoint was deleted"),
            Self::BodyMissing => {
                (StatusCode::CONFLICT, "body-missing", "The event's body is not kept any more")
            }
            Self::Changed => (StatusCode::CONFLICT, "changed", "It was changed meanwhile"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The body must be JSON")
            }
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "A field is wrong"),
            Self::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong inside Pombo")
            }
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "This cannot be done right now")
            }
            Self::OutcomeUnknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", "Whether it happened is unknown")
            }
        }
    }
}

/// A problem on its way to the caller.
#[derive(Debug)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    detail: String,
    errors: Vec<FieldError>,
    headers: HeaderMap,
    /// For the log only.
    cause: Option<String>,
}

/// The cause of a 5xx, kept with the response until it is logged once with the request's id.
#[derive(Debug, Clone)]
pub(crate) struct Cause(pub(crate) String);

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            headers: HeaderMap::new(),
            cause: None,
        }))
    }

    /// 422 with every field that is wrong.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [only] => only.sentence(),
            several => format!("{} fields are wrong; see `errors`", several.len()),
        };
        Self::new(Code::Invalid, detail).with_errors(errors)
    }

    /// 422 with one field.
    pub(crate) fn field(field: &str, code: &str, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError::new(field, code, message)])
    }

    /// 404 for an id.
    pub(crate) fn unknown(thing: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {thing} with this id"))
    }

    /// 500; `cause` goes to the log, never to the caller.
    pub(crate) fn internal(cause: impl Into<String>) -> Self {
        let mut problem =
            Self::new(Code::Internal, "the log has the reason under the id in the header x-request-id");
        problem.0.cause = Some(cause.into());
        problem
    }

    /// 503 with `Retry-After`.
    pub(crate) fn unavailable(detail: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(Code::Unavailable, detail).with_retry_after(retry_after_seconds)
    }

    pub(crate) fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.0.errors = errors;
        self
    }

    pub(crate) fn with_header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    pub(crate) fn with_retry_after(self, seconds: u32) -> Self {
        self.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    fn with_cause(mut self, cause: String) -> Self {
        self.0.cause = Some(cause);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.code.facts().0
    }

    /// As it is shown, also inside the answer to a batch.
    pub(crate) fn document(&self) -> ProblemDocument {
        let (status, word, title) = self.0.code.facts();
        ProblemDocument {
            kind: format!("/errors/{word}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: self.0.detail.clone(),
            errors: self.0.errors.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let body = serde_json::to_vec(&self.document()).expect("a problem is plain JSON");
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.extend(std::mem::take(&mut self.0.headers));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(cause) = self.0.cause.take() {
            response.extensions_mut().insert(Cause(cause));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let cause = with_sources(&error);
        let problem = match error {
            StoreError::Unavailable(_) | StoreError::Busy(_) => {
                Self::unavailable("the database does not answer right now; nothing happened, try again", 1)
            }
            StoreError::Full(_) => {
                Self::unavailable("the database has no space left; nothing happened, try again later", 10)
            }
            StoreError::ReadOnly(_) => Self::unavailable(
                "the database takes no writes right now; nothing happened, try again later",
                5,
            ),
            StoreError::OutcomeUnknown(_) => Self::outcome_unknown(
                "the connection to the database was lost during the commit; look whether it happened before \
                 you try again",
            ),
            _ => return Self::internal(cause),
        };
        problem.with_cause(cause)
    }
}

impl Problem {
    /// 503 `/errors/outcome-unknown`.
    pub(crate) fn outcome_unknown(detail: &str) -> Self {
        Self::new(Code::OutcomeUnknown, detail).with_retry_after(1)
    }
}

/// An error and what lies behind it, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_reach_the_log_and_never_the_caller() {
        let secret = || "relation \"pombo.event\" at 10.0.0.7".into();
        for (error, status, word, retry_after) in [
            (StoreError::Unavailable(secret()), 503, "unavailable", Some("1")),
            (StoreError::Busy(secret()), 503, "unavailable", Some("1")),
            (StoreError::Full(secret()), 503, "unavailable", Some("10")),
            (StoreError::ReadOnly(secret()), 503, "unavailable", Some("5")),
            (StoreError::OutcomeUnknown(secret()), 503, "outcome-unknown", Some("1")),
            (StoreError::Rejected(secret()), 500, "internal", None),
            (StoreError::Other(secret()), 500, "internal", None),
        ] {
            let problem = Problem::from(error);
            let document = problem.document();
            assert_eq!((document.status, document.kind), (status, format!("/errors/{word}")));
            assert!(!document.detail.contains("10.0.0.7"), "{}", document.detail);
            let response = problem.into_response();
            let header = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            assert_eq!(header, retry_after);
            let Cause(cause) = response.extensions().get().expect("a cause for the log");
            assert!(cause.ends_with("10.0.0.7"), "{cause}");
        }
    }

    #[test]
    fn words_of_problems_are_unique() {
        let mut words: Vec<&str> = Code::ALL.iter().map(|code| code.facts().1).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
    }
}
