//! Dead letters.

use axum::Json;
use axum::extract::State;
use pombo_store::reading::DeadFilter;

use super::show;
use crate::auth::Reader;
use crate::page::List;
use crate::problem::Problem;
use crate::query::{Query, shown_page};
use crate::shapes::{DeadLetter, Page};
use crate::state::AppState;

/// Deliveries that used up their attempts or failed for good, newest first.
#[utoipa::path(get, path = "/v1/dead-letters", operation_id = "listDeadLetters", tag = "Deliveries",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("endpoint" = Option<String>, Query, description = "Only of this endpoint"),
        ("type" = Option<String>, Query, description = "Only of this event type"),
        ("since" = Option<String>, Query, description = "Died at or after this time"),
        ("until" = Option<String>, Query, description = "Died before this time"),
        ("limit" = Option<u16>, Query, description = "1 to 250, default 50"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page<DeadLetter>)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Reader(caller): Reader,
    mut query: Query,
) -> Result<Json<Page<DeadLetter>>, Problem> {
    let mut filter = DeadFilter {
        tenant: query.tenant(),
        endpoint: query.parsed("endpoint"),
        kind: query.parsed("type"),
        since: query.instant("since"),
        until: query.instant("until"),
    };
    let page = query.page(List::DeadLetters);
    query.finish()?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    let found = state.store().dead_letters(&filter, page).await?;
    Ok(Json(shown_page(List::DeadLetters, found, show::dead_letter)))
}
