//! Endpoints. Every change is audited, and acts here at once and elsewhere within a second.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pombo_domain::endpoint::EndpointStatus;
use pombo_domain::id::EndpointId;
use pombo_domain::limits;
use pombo_domain::secret::SecretText;
use pombo_signature::SigningSecret;
use pombo_store::endpoints::{EndpointFilter, NewEndpoint, StatusChange};

use super::deliveries::{act_problem, read_reason};
use super::endpoint_settings::Changes;
use super::show;
use crate::auth::{Admin, Caller, Reader};
use crate::extract::{JsonBody, PathId};
use crate::fields::Fields;
use crate::page::List;
use crate::problem::{Code, Problem};
use crate::query::{Query, shown_page};
use crate::shapes::{
    Attempt, Deleting, Endpoint, EndpointCreate, EndpointCreated, EndpointPatch, OlderSecret, Page,
    ProblemDocument, ReasonRequest, RotateSecretRequest, RotatedSecret, Secrets,
};
use crate::state::AppState;

/// How often a change is tried again because somebody else changed the endpoint meanwhile.
const CHANGE_TRIES: usize = 5;

type SmallBody = JsonBody<{ limits::REQUEST_BYTES_MAX }>;

/// Makes an endpoint, active. The answer holds its signing secret, shown here once.
#[utoipa::path(post, path = "/v1/endpoints", operation_id = "createEndpoint", tag = "Endpoints",
    request_body = EndpointCreate,
    responses((status = 201, description = "The endpoint and its secret", body = EndpointCreated)))]
pub(super) async fn create(
    State(state): State<AppState>,
    Admin(caller): Admin,
    body: SmallBody,
) -> Result<Response, Problem> {
    let mut fields = Fields::parse(&body.bytes)?;
    let tenant = fields.parsed("tenant");
    let mut changes = Changes::read(&mut fields, state.engine());
    let url = changes.url.take();
    let url = fields.require("url", url);
    let own_secret = read_secret(&mut fields);
    let settings = url.and_then(|url| changes.create(url).map_err(|wrong| fields.note(wrong)).ok());
    fields.finish()?;
    // Every error was noted, so without one they are here.
    let settings =
        settings.ok_or_else(|| Problem::internal("settings were read neither well nor with an error"))?;
    let id = EndpointId::new(state.engine().now(), rand::random());
    let secret = own_secret.unwrap_or_else(new_secret);
    let new = NewEndpoint { id, tenant: caller.tenant_for(tenant)?, settings, secret: secret.clone() };
    let endpoint = state.store().create_endpoint(new, &caller.actor(None)).await?;
    state.engine().configuration_changed();
    let created = EndpointCreated { endpoint: show::endpoint(endpoint), secret: secret.expose().to_owned() };
    Ok((StatusCode::CREATED, Json(created)).into_response())
}

/// A secret of the caller's own, as when receivers move here and keep the one they know.
fn read_secret(fields: &mut Fields<'_>) -> Option<SecretText> {
    let text = fields.text("secret")?;
    match SigningSecret::parse(&text) {
        Ok(secret) => Some(SecretText::new(secret.as_shown().to_owned())),
        Err(error) => {
            fields.error(
                "secret",
                "invalid",
                format!("must be `whsec_` and 24 to 64 bytes in base64: {error}"),
            );
            None
        }
    }
}

fn new_secret() -> SecretText {
    SecretText::new(SigningSecret::from_random(rand::random()).as_shown().to_owned())
}

/// Endpoints, newest first.
#[utoipa::path(get, path = "/v1/endpoints", operation_id = "listEndpoints", tag = "Endpoints",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("status" = Option<String>, Query, description = "`active`, `paused` or `disabled`"),
        ("limit" = Option<u16>, Query, description = "1 to 250, default 50"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page<Endpoint>)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Reader(caller): Reader,
    mut query: Query,
) -> Result<Json<Page<Endpoint>>, Problem> {
    let mut filter = EndpointFilter {
        tenant: query.tenant(),
        status: query.word("status", EndpointStatus::from_word, &["active", "paused", "disabled"]),
    };
    let page = query.page(List::Endpoints);
    query.finish()?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    let found = state.store().endpoints(&filter, page).await?;
    Ok(Json(shown_page(List::Endpoints, found, show::endpoint)))
}

/// One endpoint.
#[utoipa::path(get, path = "/v1/endpoints/{id}", operation_id = "showEndpoint", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    responses((status = 200, description = "The endpoint", body = Endpoint)))]
pub(super) async fn show(
    State(state): State<AppState>,
    Reader(caller): Reader,
    PathId(id): PathId<EndpointId>,
    query: Query,
) -> Result<Json<Endpoint>, Problem> {
    query.finish()?;
    Ok(Json(show::endpoint(find(&state, &caller, id).await?)))
}

/// Changes an endpoint. A field left out stays as it is; `null` sets it back to its default.
#[utoipa::path(patch, path = "/v1/endpoints/{id}", operation_id = "changeEndpoint", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    request_body = EndpointPatch,
    responses(
        (status = 200, description = "The endpoint as it is now", body = Endpoint),
        (status = 409, description = "Others kept changing it", body = ProblemDocument,
            content_type = "application/problem+json"),
    ))]
pub(super) async fn change(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    body: SmallBody,
) -> Result<Json<Endpoint>, Problem> {
    let actor = caller.actor(None);
    for _ in 0..CHANGE_TRIES {
        let endpoint = find(&state, &caller, id).await?;
        let (version, mut settings) = (endpoint.version, endpoint.settings);
        // Read anew each time: it is cheap, and what it says may depend on what stands there.
        read_change(&body.bytes, &state)?
            .apply(&mut settings)
            .map_err(|wrong| Problem::invalid(vec![wrong]))?;
        if let Some(changed) = state.store().update_endpoint(id, version, settings, &actor).await? {
            state.engine().configuration_changed();
            return Ok(Json(show::endpoint(changed)));
        }
    }
    Err(Problem::new(Code::Changed, "others kept changing this endpoint; look at it and try again"))
}

/// Fields of an endpoint that other calls change, or nobody.
const READ_ONLY: [(&str, &str); 7] = [
    ("id", "cannot be changed"),
    ("tenant", "cannot be changed: make an endpoint for the other tenant"),
    ("status", "is changed with POST …/pause and …/resume"),
    ("disabledReason", "is set by Pombo"),
    ("createdAt", "is set by Pombo"),
    ("updatedAt", "is set by Pombo"),
    ("secret", "is changed with POST …/rotate-secret"),
];

fn read_change(bytes: &[u8], state: &AppState) -> Result<Changes, Problem> {
    let mut fields = Fields::parse(bytes)?;
    let changes = Changes::read(&mut fields, state.engine());
    for (name, message) in READ_ONLY {
        if fields.raw(name).is_some() {
            fields.error(name, "read_only", message);
        }
    }
    fields.finish()?;
    Ok(changes)
}

/// Deletes an endpoint. Nothing is sent to it any more; its live deliveries are cancelled in the background.
#[utoipa::path(delete, path = "/v1/endpoints/{id}", operation_id = "deleteEndpoint", tag = "Endpoints",
    params(
        ("id" = String, Path, description = "`ep_…`"),
        ("reason" = Option<String>, Query, description = "Why; kept in the audit log"),
    ),
    responses((status = 202, description = "It is gone; its deliveries are being cancelled", body = Deleting)))]
pub(super) async fn delete(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    mut query: Query,
) -> Result<Response, Problem> {
    let reason = query.prose("reason", limits::REASON_BYTES_MAX);
    query.finish()?;
    find(&state, &caller, id).await?;
    if !state.store().delete_endpoint(id, &caller.actor(reason)).await? {
        return Err(Problem::unknown("endpoint"));
    }
    state.engine().endpoint_deleted(id);
    Ok((StatusCode::ACCEPTED, Json(Deleting { id, status: "deleting".to_owned() })).into_response())
}

/// Pauses an endpoint: its deliveries wait, nothing is dropped.
#[utoipa::path(post, path = "/v1/endpoints/{id}/pause", operation_id = "pauseEndpoint", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    request_body(content = Option<ReasonRequest>),
    responses((status = 200, description = "The endpoint as it is now", body = Endpoint)))]
pub(super) async fn pause(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    body: SmallBody,
) -> Result<Json<Endpoint>, Problem> {
    set_status(&state, &caller, id, StatusChange::Pause, read_reason(&body.bytes)?).await
}

/// Resumes an endpoint that is paused or disabled: its deliveries go on.
#[utoipa::path(post, path = "/v1/endpoints/{id}/resume", operation_id = "resumeEndpoint", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    request_body(content = Option<ReasonRequest>),
    responses((status = 200, description = "The endpoint as it is now", body = Endpoint)))]
pub(super) async fn resume(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    body: SmallBody,
) -> Result<Json<Endpoint>, Problem> {
    set_status(&state, &caller, id, StatusChange::Resume, read_reason(&body.bytes)?).await
}

async fn set_status(
    state: &AppState,
    caller: &Caller,
    id: EndpointId,
    change: StatusChange,
    reason: Option<String>,
) -> Result<Json<Endpoint>, Problem> {
    find(state, caller, id).await?;
    let changed = state.store().set_endpoint_status(id, change, &caller.actor(reason)).await?;
    let endpoint = changed.ok_or_else(|| Problem::unknown("endpoint"))?;
    state.engine().configuration_changed();
    Ok(Json(show::endpoint(endpoint)))
}

/// Sends `pombo.test` once, whatever the endpoint's status, and answers with the attempt.
#[utoipa::path(post, path = "/v1/endpoints/{id}/test", operation_id = "testEndpoint", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    responses((status = 200, description = "What came of it", body = Attempt)))]
pub(super) async fn test(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    body: SmallBody,
) -> Result<Json<Attempt>, Problem> {
    Fields::parse(&body.bytes)?.finish()?;
    find(&state, &caller, id).await?;
    let attempt = state.engine().send_test(id).await.map_err(|error| act_problem(error, "endpoint"))?;
    Ok(Json(show::attempt(attempt)))
}

/// Makes a new signing secret. The old one signs too until the overlap is over.
#[utoipa::path(post, path = "/v1/endpoints/{id}/rotate-secret", operation_id = "rotateSecret", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    request_body(content = Option<RotateSecretRequest>),
    responses((status = 200, description = "The new secret", body = RotatedSecret)))]
pub(super) async fn rotate_secret(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    body: SmallBody,
) -> Result<Json<RotatedSecret>, Problem> {
    let mut fields = Fields::parse(&body.bytes)?;
    let overlap = fields.integer("overlapSeconds", 0..=limits::SECRET_OVERLAP_MAX.as_secs() as i64);
    let reason = fields.prose("reason", limits::REASON_BYTES_MAX);
    fields.finish()?;
    let overlap =
        overlap.map_or(limits::SECRET_OVERLAP_DEFAULT, |seconds| Duration::from_secs(seconds as u64));
    find(&state, &caller, id).await?;
    let secret = new_secret();
    let rotated = state.store().rotate_secret(id, secret.clone(), overlap, &caller.actor(reason)).await?;
    rotated.ok_or_else(|| Problem::unknown("endpoint"))?;
    state.engine().configuration_changed();
    let (secret, overlap_seconds) = (secret.expose().to_owned(), overlap.as_secs() as u32);
    Ok(Json(RotatedSecret { id, secret, overlap_seconds }))
}

/// Shows the signing secrets. Looking at them is audited.
#[utoipa::path(get, path = "/v1/endpoints/{id}/secret", operation_id = "showSecret", tag = "Endpoints",
    params(("id" = String, Path, description = "`ep_…`")),
    responses((status = 200, description = "The secrets", body = Secrets)))]
pub(super) async fn secret(
    State(state): State<AppState>,
    Admin(caller): Admin,
    PathId(id): PathId<EndpointId>,
    query: Query,
) -> Result<Json<Secrets>, Problem> {
    query.finish()?;
    find(&state, &caller, id).await?;
    let secrets = state.store().reveal_secrets(id, &caller.actor(None)).await?;
    let mut secrets = secrets.ok_or_else(|| Problem::unknown("endpoint"))?.into_iter();
    let current = secrets.next().ok_or_else(|| Problem::internal(format!("endpoint {id} has no secret")))?;
    let older = |secret: pombo_store::endpoints::EndpointSecret| {
        let expires_at = secret.expires_at?;
        Some(OlderSecret { secret: secret.secret.expose().to_owned(), expires_at })
    };
    Ok(Json(Secrets {
        secret: current.secret.expose().to_owned(),
        created_at: current.created_at,
        previous: secrets.filter_map(older).collect(),
    }))
}

async fn find(
    state: &AppState,
    caller: &Caller,
    id: EndpointId,
) -> Result<pombo_domain::endpoint::Endpoint, Problem> {
    state.store().endpoint(id, caller.tenant()).await?.ok_or_else(|| Problem::unknown("endpoint"))
}
