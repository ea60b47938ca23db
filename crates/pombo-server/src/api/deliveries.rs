//! Deliveries: looking at them, trying one now, cancelling one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::Endpoint;
use pombo_domain::id::{DeliveryId, EndpointId, EventId};
use pombo_domain::limits;
use pombo_engine::{ActError, Retried};
use pombo_store::people::Cancellation;
use pombo_store::reading::{DeliveryFilter, DeliveryRecord};

use super::{show, why};
use crate::auth::{Admin, Caller, Reader};
use crate::extract::{JsonBody, PathId};
use crate::fields::Fields;
use crate::page::{self, List};
use crate::problem::{Code, Problem};
use crate::query::Query;
use crate::shapes::{
    self, Delivery, DeliveryDetail, Page, ProblemDocument, ReasonRequest, RetryOutcome, RetryRequest,
};
use crate::state::AppState;

/// Deliveries, newest first.
#[utoipa::path(get, path = "/v1/deliveries", operation_id = "listDeliveries", tag = "Deliveries",
    params(
        ("status" = Option<String>, Query,
            description = "`pending` `sending` `retrying` `paused` `delivered` `dead` `cancelled`"),
        ("endpoint" = Option<String>, Query, description = "Only to this endpoint"),
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("event" = Option<String>, Query, description = "Only of this event"),
        ("type" = Option<String>, Query, description = "Only of this event type"),
        ("since" = Option<String>, Query, description = "Event created at or after this time"),
        ("until" = Option<String>, Query, description = "Event created before this time"),
        ("limit" = Option<u16>, Query, description = "1 to 250, default 50"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page<Delivery>)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Reader(caller): Reader,
    mut query: Query,
) -> Result<Json<Page<Delivery>>, Problem> {
    let words = DeliveryStatus::ALL.map(DeliveryStatus::as_str);
    let event: Option<EventId> = query.parsed("event");
    let mut filter = DeliveryFilter {
        status: query.word("status", DeliveryStatus::from_word, &words),
        endpoint: query.parsed("endpoint"),
        tenant: query.tenant(),
        event: None,
        kind: query.parsed("type"),
        since: query.instant("since"),
        until: query.instant("until"),
    };
    let page = query.page(List::Deliveries);
    query.finish()?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    if let Some(event) = event {
        let Some(record) = state.store().event(event, filter.tenant).await? else {
            return Ok(Json(Page { data: Vec::new(), next: None }));
        };
        filter.event = Some((event, record.created_at));
    }
    let found = state.store().deliveries(&filter, page).await?;
    let next = found.next.map(|cursor| page::encode(List::Deliveries, cursor));
    Ok(Json(Page { data: shown_deliveries(&state, found.items).await?, next }))
}

/// A delivery with everything that happened to it, when it is tried next, and why it waits.
#[utoipa::path(get, path = "/v1/deliveries/{id}", operation_id = "showDelivery", tag = "Deliveries",
    params(("id" = String, Path, description = "`dlv_…`")),
    responses((status = 200, description = "The delivery", body = DeliveryDetail)))]
pub(super) async fn show(
    State(state): State<AppState>,
    Reader(caller): Reader,
    PathId(id): PathId<DeliveryId>,
    query: Query,
) -> Result<Json<DeliveryDetail>, Problem> {
    query.finish()?;
    let delivery = find(&state, &caller, id).await?;
    let attempts = state.store().attempts(id).await?;
    let timeline = attempts.into_iter().map(show::attempt).collect();
    Ok(Json(DeliveryDetail { delivery: shown_delivery(&state, delivery).await?, timeline }))
}

/// Tries a delivery now: one that waits gets one attempt whose failure leaves its schedule as it was, a dead or
/// cancelled one lives again from the start of its schedule, a delivered one gets one attempt whose failure
/// changes nothing.
#[utoipa::path(post, path = "/v1/deliveries/{id}/retry", operation_id = "retryDelivery", tag = "Deliveries",
    params(("id" = String, Path, description = "`dlv_…`")),
    request_body(content = Option<RetryRequest>),
    responses(
        (status = 200, description = "One attempt was made", body = shapes::Retried),
        (status = 202, description = "The delivery lives again", body = shapes::Retried),
        (status = 409, description = "It is being sent, its endpoint is paused, disabled or deleted, or its body \
            is gone", body = ProblemDocument, content_type = "application/problem+json"),
    ))]
pub(super) async fn retry(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<DeliveryId>,
    body: JsonBody<{ limits::REQUEST_BYTES_MAX }>,
) -> Result<Response, Problem> {
    let mut fields = Fields::parse(&body.bytes)?;
    let reason = fields.prose("reason", limits::REASON_BYTES_MAX);
    let force = fields.boolean("force").unwrap_or(false);
    fields.finish()?;
    find(&state, &caller, id).await?;
    let retried = state.engine().retry(id, &caller.actor(reason), force).await;
    let (status, outcome, attempt) = match retried.map_err(|error| act_problem(error, "delivery"))? {
        Retried::Attempted(attempt) => {
            (StatusCode::OK, RetryOutcome::Attempted, Some(show::attempt(*attempt)))
        }
        Retried::Revived => (StatusCode::ACCEPTED, RetryOutcome::Revived, None),
    };
    let delivery = find(&state, &caller, id).await?;
    let delivery = shown_delivery(&state, delivery).await?;
    Ok((status, Json(shapes::Retried { outcome, attempt, delivery })).into_response())
}

/// Cancels a delivery that is not settled. An attempt under way still ends, and is recorded as late.
#[utoipa::path(post, path = "/v1/deliveries/{id}/cancel", operation_id = "cancelDelivery", tag = "Deliveries",
    params(("id" = String, Path, description = "`dlv_…`")),
    request_body(content = Option<ReasonRequest>),
    responses(
        (status = 200, description = "It is cancelled", body = Delivery),
        (status = 409, description = "It is settled already", body = ProblemDocument,
            content_type = "application/problem+json"),
    ))]
pub(super) async fn cancel(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<DeliveryId>,
    body: JsonBody<{ limits::REQUEST_BYTES_MAX }>,
) -> Result<Json<Delivery>, Problem> {
    let reason = read_reason(&body.bytes)?;
    find(&state, &caller, id).await?;
    match state.store().cancel_delivery(id, &caller.actor(reason)).await? {
        Cancellation::Cancelled => {
            let delivery = find(&state, &caller, id).await?;
            Ok(Json(shown_delivery(&state, delivery).await?))
        }
        Cancellation::NotLive => {
            // Read again: it was settled since, or another cancelled it.
            let status = find(&state, &caller, id).await?.status.as_str();
            Err(Problem::new(
                Code::AlreadySettled,
                format!("this delivery is {status}; nothing is left to cancel"),
            ))
        }
    }
}

/// `{reason?}`.
pub(super) fn read_reason(bytes: &[u8]) -> Result<Option<String>, Problem> {
    let mut fields = Fields::parse(bytes)?;
    let reason = fields.prose("reason", limits::REASON_BYTES_MAX);
    fields.finish()?;
    Ok(reason)
}

async fn find(state: &AppState, caller: &Caller, id: DeliveryId) -> Result<DeliveryRecord, Problem> {
    state.store().delivery(id, caller.tenant()).await?.ok_or_else(|| Problem::unknown("delivery"))
}

async fn shown_delivery(state: &AppState, record: DeliveryRecord) -> Result<Delivery, Problem> {
    let now = state.engine().now();
    let endpoints = needed_endpoints(state, std::slice::from_ref(&record), now).await?;
    Ok(show::delivery(record, endpoints.values().flatten().next(), now))
}

/// Deliveries as they are shown, each endpoint that is needed for it read once.
pub(super) async fn shown_deliveries(
    state: &AppState,
    records: Vec<DeliveryRecord>,
) -> Result<Vec<Delivery>, Problem> {
    let now = state.engine().now();
    let endpoints = needed_endpoints(state, &records, now).await?;
    let show = |record: DeliveryRecord| {
        let endpoint = endpoints.get(&record.endpoint_id).and_then(Option::as_ref);
        show::delivery(record, endpoint, now)
    };
    Ok(records.into_iter().map(show).collect())
}

async fn needed_endpoints(
    state: &AppState,
    records: &[DeliveryRecord],
    now: Timestamp,
) -> Result<HashMap<EndpointId, Option<Endpoint>>, Problem> {
    let mut endpoints = HashMap::new();
    for record in records.iter().filter(|record| why::needs_endpoint(record, now)) {
        if let Entry::Vacant(place) = endpoints.entry(record.endpoint_id) {
            place.insert(state.store().endpoint(record.endpoint_id, None).await?);
        }
    }
    Ok(endpoints)
}

/// Why an act on a delivery or an endpoint did not happen.
pub(super) fn act_problem(error: ActError, thing: &str) -> Problem {
    match error {
        ActError::NotFound => Problem::unknown(thing),
        ActError::BeingSent => {
            Problem::new(Code::BeingSent, "a process is sending this delivery right now; wait for its result")
        }
        ActError::EndpointNotActive => Problem::new(
            Code::EndpointNotActive,
            "the endpoint is paused or disabled; resume it, or send `{\"force\": true}`",
        ),
        ActError::EndpointDeleted => {
            Problem::new(Code::EndpointDeleted, "the endpoint was deleted; nothing can be sent to it")
        }
        ActError::BodyMissing => {
            Problem::new(Code::BodyMissing, "the event's body is not kept any more; it cannot be sent again")
        }
        ActError::NotSending => Problem::unavailable("this process cannot send right now; try again", 1),
        ActError::Store(error) => error.into(),
    }
}
