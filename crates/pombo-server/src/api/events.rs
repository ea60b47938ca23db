//! Looking at events.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use pombo_domain::endpoint::Endpoint;
use pombo_domain::event::{Draft, Payload};
use pombo_domain::id::{EndpointId, EventId};
use pombo_domain::limits;
use pombo_domain::routing::{self, Mismatch};
use pombo_store::endpoints::EndpointFilter;
use pombo_store::page::PageRequest;
use pombo_store::reading::{DeliveryFilter, EventFilter, EventRecord};

use super::deliveries::shown_deliveries;
use super::show;
use crate::auth::Reader;
use crate::extract::PathId;
use crate::page::{self, List};
use crate::problem::Problem;
use crate::query::{Query, shown_page};
use crate::shapes::{Event, EventDetail, ExactBytes, Page, Unmatched};
use crate::state::AppState;

/// Endpoints of a tenant looked at for "why not this one".
const UNMATCHED_MAX: usize = limits::PAGE_MAX as usize;
/// Pages of endpoints looked at for it.
const UNMATCHED_PAGES_MAX: usize = 8;

/// Events, newest first.
#[utoipa::path(get, path = "/v1/events", operation_id = "listEvents", tag = "Events",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("type" = Option<String>, Query, description = "Only this type"),
        ("since" = Option<String>, Query, description = "Created at or after this time"),
        ("until" = Option<String>, Query, description = "Created before this time"),
        ("unmatched" = Option<bool>, Query, description = "Only events that had no delivery"),
        ("limit" = Option<u16>, Query, description = "1 to 250, default 50"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page<Event>)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Reader(caller): Reader,
    mut query: Query,
) -> Result<Json<Page<Event>>, Problem> {
    let mut filter = EventFilter {
        tenant: query.tenant(),
        kind: query.parsed("type"),
        since: query.instant("since"),
        until: query.instant("until"),
        unmatched: query.flag("unmatched"),
    };
    let page = query.page(List::Events);
    query.finish()?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    let found = state.store().events(&filter, page).await?;
    Ok(Json(shown_page(List::Events, found, show::event)))
}

/// An event, its deliveries, and the endpoints that did not get it, with why.
#[utoipa::path(get, path = "/v1/events/{id}", operation_id = "showEvent", tag = "Events",
    params(("id" = String, Path, description = "`evt_…`")),
    responses((status = 200, description = "The event", body = EventDetail)))]
pub(super) async fn show(
    State(state): State<AppState>,
    Reader(caller): Reader,
    PathId(id): PathId<EventId>,
    query: Query,
) -> Result<Json<EventDetail>, Problem> {
    query.finish()?;
    let event = state.store().event(id, caller.tenant()).await?.ok_or_else(|| Problem::unknown("event"))?;
    let filter = DeliveryFilter { event: Some((id, event.created_at)), ..DeliveryFilter::default() };
    let first = PageRequest { limit: limits::PAGE_MAX, after: None };
    let deliveries = state.store().deliveries(&filter, first).await?;
    let deliveries_next = deliveries.next.map(|cursor| page::encode(List::Deliveries, cursor));
    let reached: HashSet<EndpointId> = deliveries.items.iter().map(|delivery| delivery.endpoint_id).collect();
    // With more deliveries than one page shows, who is missing cannot be told from it.
    let unmatched =
        if deliveries_next.is_some() { Vec::new() } else { unmatched(&state, &event, &reached).await? };
    Ok(Json(EventDetail {
        event: show::event(event),
        deliveries: shown_deliveries(&state, deliveries.items).await?,
        deliveries_next,
        unmatched,
    }))
}

async fn unmatched(
    state: &AppState,
    event: &EventRecord,
    reached: &HashSet<EndpointId>,
) -> Result<Vec<Unmatched>, Problem> {
    let filter = EndpointFilter { tenant: Some(event.tenant_id), status: None };
    // Routing looks at type and targets alone.
    let draft = Draft {
        tenant: event.tenant.clone(),
        kind: event.kind.clone(),
        payload: Payload::Data(Bytes::new()),
        client_key: None,
        targets: event.targets.clone(),
        ordering_key: None,
        resource_version: None,
        deliver_at: None,
    };
    let mut found = Vec::new();
    let mut after = None;
    for _ in 0..UNMATCHED_PAGES_MAX {
        let page = PageRequest { limit: limits::PAGE_MAX, after };
        let endpoints = state.store().endpoints(&filter, page).await?;
        let missed = endpoints.items.iter().filter(|endpoint| !reached.contains(&endpoint.id));
        found.extend(missed.map(|endpoint| why_not(&draft, event, endpoint)));
        after = endpoints.next;
        if after.is_none() || found.len() >= UNMATCHED_MAX {
            break;
        }
    }
    found.truncate(UNMATCHED_MAX);
    Ok(found)
}

fn why_not(draft: &Draft, event: &EventRecord, endpoint: &Endpoint) -> Unmatched {
    let (code, text) = match routing::matches(draft, endpoint) {
        Err(mismatch @ Mismatch::EventType) => {
            (mismatch.as_str(), "The event's type matches none of the endpoint's `eventTypes`.")
        }
        Err(mismatch @ Mismatch::NotTargeted) => {
            (mismatch.as_str(), "The event named other endpoints in `endpoints`.")
        }
        Ok(()) if endpoint.created_at > event.created_at => {
            ("created_later", "The endpoint was made after the event was accepted.")
        }
        Ok(()) => ("changed_later", "It would match now; its `eventTypes` were changed after the event."),
    };
    Unmatched { endpoint_id: endpoint.id, code: code.to_owned(), text: text.to_owned() }
}

/// The exact bytes that are signed and sent, with their content type.
#[utoipa::path(get, path = "/v1/events/{id}/body", operation_id = "showEventBody", tag = "Events",
    params(("id" = String, Path, description = "`evt_…`")),
    responses((status = 200, description = "The bytes", body = ExactBytes,
            content_type = "application/octet-stream")))]
pub(super) async fn body(
    State(state): State<AppState>,
    Reader(caller): Reader,
    PathId(id): PathId<EventId>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found =
        state.store().event_body(id, caller.tenant()).await?.ok_or_else(|| Problem::unknown("event"))?;
    let content_type = HeaderValue::try_from(&found.content_type)
        .unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"));
    // Bytes that anyone may have published must never run as a page of this origin.
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox")),
    ];
    Ok((headers, found.body).into_response())
}
