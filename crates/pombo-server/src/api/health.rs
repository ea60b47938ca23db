//! Whether the process lives, whether it can work, and its numbers. Without a key.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use pombo_engine::Readiness;

use crate::problem::Problem;
use crate::shapes::{Health, ProblemDocument};
use crate::state::AppState;

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "Operation", security(()),
    responses((status = 200, description = "It is", body = Health)))]
pub(super) async fn alive() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// Whether the process can do its work: it fails while the database is away or the process drains.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "Operation", security(()),
    responses(
        (status = 200, description = "It can", body = Health),
        (status = 503, description = "It cannot right now", body = ProblemDocument,
            content_type = "application/problem+json"),
    ))]
pub(super) async fn ready(State(state): State<AppState>) -> Result<Json<Health>, Problem> {
    let reason = match state.engine().readiness() {
        Readiness::Ready => {
            state.store().ping().await?;
            return Ok(Json(Health { status: "ready".to_owned() }));
        }
        Readiness::DatabaseAway => "the database does not answer",
        Readiness::NoSession => "this process holds no session yet",
        Readiness::Draining => "this process is shutting down",
    };
    Err(Problem::unavailable(reason, 1))
}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "Operation", security(()),
    responses((status = 200, description = "The numbers", body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(state): State<AppState>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TEXT)], state.engine().encode_metrics()).into_response()
}
