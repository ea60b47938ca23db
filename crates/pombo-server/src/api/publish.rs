//! Publishing events: the hot path.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use pombo_domain::clock::Timestamp;
use pombo_domain::event::{Draft, Payload, PayloadError, ResourceVersion};
use pombo_domain::event_type::EventType;
use pombo_domain::id::EndpointId;
use pombo_domain::limits;
use pombo_domain::name::{ClientKey, NameError};
use pombo_engine::{PublishError, Published};
use serde_json::value::RawValue;

use crate::auth::{Caller, Publisher};
use crate::extract::JsonBody;
use crate::fields::{Fields, Wrong, read_text};
use crate::problem::{Code, Problem};
use crate::shapes::{self, Batch, BatchItem, BatchRequest, FieldError, ProblemDocument, PublishRequest};
use crate::state::AppState;

/// Publishes an event. The answer comes after the commit: an event that was answered with 202 is never lost.
#[utoipa::path(post, path = "/v1/events", operation_id = "publishEvent", tag = "Events",
    request_body = PublishRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "The field `id` by another name")),
    responses(
        (status = 202, description = "Accepted", body = shapes::Published),
        (status = 200, description = "Accepted before, with the same `id` and content", body = shapes::Published),
        (status = 409, description = "The `id` was used with other content", body = ProblemDocument,
            content_type = "application/problem+json"),
    ))]
pub(super) async fn publish(
    State(state): State<AppState>,
    Publisher(caller): Publisher,
    IdempotencyKey(key): IdempotencyKey,
    body: JsonBody<{ limits::EVENT_REQUEST_BYTES_MAX }>,
) -> Result<Response, Problem> {
    let fields = Fields::parse(&body.bytes)?;
    let context = Context { caller: &caller, now: state.engine().now(), body: &body.bytes };
    let draft = read_draft(fields, key, &context)?;
    let published = state.engine().publish(draft).await.map_err(Problem::from)?;
    let status = status_of(&published);
    Ok((status, Json(shown(published))).into_response())
}

/// Publishes up to a thousand events. One bad event harms no other; each has its own answer.
#[utoipa::path(post, path = "/v1/events/batch", operation_id = "publishEvents", tag = "Events",
    request_body = BatchRequest,
    responses((status = 200, description = "One answer per event, in order", body = Batch)))]
pub(super) async fn publish_batch(
    State(state): State<AppState>,
    Publisher(caller): Publisher,
    IdempotencyKey(key): IdempotencyKey,
    body: JsonBody<{ limits::BATCH_REQUEST_BYTES_MAX }>,
) -> Result<Json<Batch>, Problem> {
    if key.is_some() {
        let message = "is not taken for a batch: give each event its own `id`";
        return Err(Problem::field("Idempotency-Key", "not_allowed", message));
    }
    let items = read_items(Fields::parse(&body.bytes)?)?;
    let context = Context { caller: &caller, now: state.engine().now(), body: &body.bytes };
    let mut drafts = Vec::with_capacity(items.len());
    let mut refused = Vec::with_capacity(items.len());
    for item in items {
        match Fields::parse(item.get().as_bytes()).and_then(|fields| read_draft(fields, None, &context)) {
            Ok(draft) => {
                drafts.push(draft);
                refused.push(None);
            }
            Err(problem) => refused.push(Some(problem)),
        }
    }
    let mut published = state.engine().publish_all(drafts).await.into_iter();
    let answer = |refused: Option<Problem>| match refused {
        Some(problem) => Err(problem),
        // The engine answers once per draft.
        None => published.next().unwrap_or(Err(PublishError::Stopping)).map_err(Problem::from),
    };
    Ok(Json(Batch { data: refused.into_iter().map(answer).map(shown_item).collect() }))
}

fn read_items(mut fields: Fields<'_>) -> Result<Vec<&RawValue>, Problem> {
    let items = fields.list("events");
    let items = fields.require("events", items).unwrap_or_default();
    if items.is_empty() {
        if fields.is_clean() {
            fields.error("events", "range", "must hold at least one event");
        }
    } else if items.len() > limits::BATCH_EVENTS_MAX {
        let message = format!("must hold at most {} events, holds {}", limits::BATCH_EVENTS_MAX, items.len());
        fields.error("events", "too_large", message);
    }
    fields.finish()?;
    Ok(items)
}

/// What an event is read with.
struct Context<'a> {
    caller: &'a Caller,
    now: Timestamp,
    /// The whole body of the request; `data` is a slice of it, not a copy.
    body: &'a Bytes,
}

/// Reads one event, and names everything that is wrong with it.
fn read_draft(
    mut fields: Fields<'_>,
    header_key: Option<ClientKey>,
    context: &Context<'_>,
) -> Result<Draft, Problem> {
    let tenant = fields.parsed("tenant");
    let kind = read_kind(&mut fields);
    let payload = read_payload(&mut fields, context.body);
    let client_key = read_client_key(&mut fields, header_key);
    let targets = read_targets(&mut fields);
    let ordering_key = fields.parsed("orderingKey");
    let resource_version = fields.integer("resourceVersion", 0..=ResourceVersion::MAX);
    let deliver_at = read_deliver_at(&mut fields, context.now);
    fields.finish()?;
    // Every error was noted, so without one both are here.
    let (Some(kind), Some(payload)) = (kind, payload) else {
        return Err(Problem::internal("an event was read neither well nor with an error"));
    };
    check_payload(&payload)?;
    Ok(Draft {
        tenant: context.caller.tenant_for(tenant)?,
        kind,
        payload,
        client_key,
        targets,
        ordering_key,
        resource_version: resource_version.and_then(ResourceVersion::new),
        deliver_at,
    })
}

fn read_kind(fields: &mut Fields<'_>) -> Option<EventType> {
    let text = fields.text("type");
    let kind = text.map(|text| EventType::parse_published(&text));
    let kind = fields.require("type", kind)?;
    kind.map_err(|error| fields.error("type", "invalid", error.to_string())).ok()
}

/// Exactly one of `data`, `payload` and `payloadBase64`; `contentType` with the last two only.
fn read_payload(fields: &mut Fields<'_>, body: &Bytes) -> Option<Payload> {
    let was_clean = fields.is_clean();
    let data = fields.raw("data");
    let text = fields.text("payload");
    let base64 = fields.text("payloadBase64");
    let content_type = fields.text("contentType");
    let given = [("data", data.is_some()), ("payload", text.is_some()), ("payloadBase64", base64.is_some())];
    let mut given = given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name));
    let Some(first) = given.next() else {
        if was_clean == fields.is_clean() {
            fields.error("data", "required", "is required, or else `payload` or `payloadBase64`");
        }
        return None;
    };
    if let Some(second) = given.next() {
        fields.error(second, "not_allowed", format!("must not be given beside `{first}`"));
        return None;
    }
    if let Some(data) = data {
        if content_type.is_some() {
            let message = "goes with `payload` or `payloadBase64`; `data` is always sent as application/json";
            fields.error("contentType", "not_allowed", message);
        }
        return Some(Payload::Data(body.slice_ref(data.get().as_bytes())));
    }
    let content_type = fields.require("contentType", content_type)?.into_owned();
    let body = match (text, base64) {
        (Some(text), _) => text.into_owned().into(),
        (_, Some(base64)) => {
            let decoded = STANDARD.decode(base64.as_bytes());
            let wrong = |_| Wrong::new("invalid", "must be standard base64 with padding");
            fields.noted("payloadBase64", decoded.map_err(wrong))?.into()
        }
        (None, None) => return None,
    };
    Some(Payload::Raw { body, content_type })
}

fn check_payload(payload: &Payload) -> Result<(), Problem> {
    let Err(error) = payload.check() else { return Ok(()) };
    let field = match (&error, payload) {
        (PayloadError::ContentType, _) => "contentType",
        (_, Payload::Data(_)) => "data",
        (_, Payload::Raw { .. }) => "payload",
    };
    if let PayloadError::TooLarge { .. } = error {
        let wrong = FieldError::new(field, "too_large", error.to_string());
        return Err(Problem::new(Code::TooLarge, wrong.sentence()).with_errors(vec![wrong]));
    }
    Err(Problem::field(field, "invalid", error.to_string()))
}

fn read_client_key(fields: &mut Fields<'_>, header: Option<ClientKey>) -> Option<ClientKey> {
    let key = fields.parsed::<ClientKey>("id");
    match (key, header) {
        (Some(key), Some(header)) if key != header => {
            let message = "differs from the header `Idempotency-Key`: give one of them, or the same";
            fields.error("id", "not_allowed", message);
            None
        }
        (key, header) => key.or(header),
    }
}

fn read_targets(fields: &mut Fields<'_>) -> Option<Vec<EndpointId>> {
    let items = fields.list("endpoints")?;
    if items.is_empty() || items.len() > limits::TARGETS_MAX {
        let message = format!("must hold 1 to {} endpoint ids; leave it out for all", limits::TARGETS_MAX);
        fields.error("endpoints", "range", message);
        return None;
    }
    let mut targets = Vec::with_capacity(items.len());
    for (n, item) in items.into_iter().enumerate() {
        let read = read_text(item).and_then(|text| {
            text.parse::<EndpointId>().map_err(|error| Wrong::new("invalid", error.to_string()))
        });
        let id = fields.noted("endpoints", read.map_err(|wrong| wrong.at(format!("[{n}]"))));
        targets.extend(id.filter(|id| !targets.contains(id)));
    }
    Some(targets)
}

fn read_deliver_at(fields: &mut Fields<'_>, now: Timestamp) -> Option<Timestamp> {
    let text = fields.text("deliverAt")?;
    match Timestamp::parse(&text) {
        Err(error) => fields.error("deliverAt", "invalid", error.to_string()),
        Ok(at) if at > now.plus(limits::DELIVER_AT_MAX) => {
            fields.error("deliverAt", "range", "must be at most 30 days ahead");
        }
        Ok(at) => return Some(at),
    }
    None
}

fn status_of(published: &Published) -> StatusCode {
    if published.repeated { StatusCode::OK } else { StatusCode::ACCEPTED }
}

fn shown(published: Published) -> shapes::Published {
    shapes::Published {
        id: published.id,
        client_id: published.client_key,
        kind: published.kind,
        tenant: published.tenant,
        created_at: published.created_at,
        deliveries: published.deliveries,
    }
}

fn shown_item(outcome: Result<Published, Problem>) -> BatchItem {
    match outcome {
        Ok(published) => {
            let status = status_of(&published).as_u16();
            BatchItem::Accepted { status, event: shown(published) }
        }
        Err(problem) => BatchItem::Refused { status: problem.status().as_u16(), problem: problem.document() },
    }
}

impl From<PublishError> for Problem {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::KeyConflict { earlier } => Self::new(
                Code::IdConflict,
                format!("this `id` was published before as {earlier} with other content; use another `id`"),
            ),
            PublishError::UnknownTarget(id) => {
                Self::field("endpoints", "unknown", format!("names {id}, which this tenant does not have"))
            }
            PublishError::OutcomeUnknown => Self::outcome_unknown(
                "the connection to the database was lost during the commit; send the event again with the \
                 same `id`, and it will exist once",
            ),
            PublishError::Unavailable => Self::unavailable(
                "the database takes no events right now; nothing happened, send it again",
                1,
            ),
            PublishError::Stopping => {
                Self::unavailable("this process is shutting down; nothing happened, send it again", 1)
            }
            PublishError::Rejected => {
                Self::new(Code::Invalid, "the database refuses this event, though every field looks right")
            }
        }
    }
}

/// The header `Idempotency-Key`.
pub(super) struct IdempotencyKey(Option<ClientKey>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        const NAME: &str = "Idempotency-Key";
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        if values.next().is_some() {
            return Err(Problem::field(NAME, "duplicate", "is given twice"));
        }
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Problem::field(NAME, "invalid", "must be UTF-8"))?;
        let key =
            text.parse().map_err(|error: NameError| Problem::field(NAME, "invalid", error.to_string()))?;
        Ok(Self(Some(key)))
    }
}
