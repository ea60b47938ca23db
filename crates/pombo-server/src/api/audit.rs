//! The audit log.

use axum::Json;
use axum::extract::State;

use super::show;
use crate::auth::Admin;
use crate::page::List;
use crate::problem::Problem;
use crate::query::{Query, shown_page};
use crate::shapes::{AuditEntry, Page};
use crate::state::AppState;

/// Who did what, newest first.
#[utoipa::path(get, path = "/v1/audit", operation_id = "listAudit", tag = "Audit",
    params(
        ("tenant" = Option<String>, Query, description = "Only what concerns this tenant"),
        ("limit" = Option<u16>, Query, description = "1 to 250, default 50"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page<AuditEntry>)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Admin(caller): Admin,
    mut query: Query,
) -> Result<Json<Page<AuditEntry>>, Problem> {
    let (tenant, page) = (query.tenant(), query.page(List::Audit));
    query.finish()?;
    let found = state.store().audit(caller.narrowed(tenant)?, page).await?;
    Ok(Json(shown_page(List::Audit, found, show::audit_entry)))
}
