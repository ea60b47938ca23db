//! The routes.

mod audit;
mod dead;
mod deliveries;
mod endpoint_settings;
mod endpoints;
mod events;
mod health;
mod publish;
mod show;
mod why;

use axum::Router;
use http::{Method, Uri};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::openapi;
use crate::problem::{Code, Problem};
use crate::state::AppState;

/// The API as axum's router. Served by [`crate::serve`], which adds what every answer carries.
pub fn router(state: AppState) -> Router {
    let (router, _) = routes().split_for_parts();
    router.fallback(unknown_route).method_not_allowed_fallback(wrong_method).with_state(state)
}

/// Only `/healthz`, `/readyz` and `/metrics`: for a process without the role `api`.
pub fn health_router(state: AppState) -> Router {
    let routes = OpenApiRouter::new()
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics));
    let (router, _) = routes.split_for_parts();
    router.fallback(unknown_route).method_not_allowed_fallback(wrong_method).with_state(state)
}

/// Every route with its reference. Nothing is routed that is not described: this is the only place that adds
/// routes, and `routes!` adds both at once.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::outline())
        .routes(routes!(publish::publish, events::list))
        .routes(routes!(publish::publish_batch))
        .routes(routes!(events::show))
        .routes(routes!(events::body))
        .routes(routes!(endpoints::create, endpoints::list))
        .routes(routes!(endpoints::show, endpoints::change, endpoints::delete))
        .routes(routes!(endpoints::pause))
        .routes(routes!(endpoints::resume))
        .routes(routes!(endpoints::test))
        .routes(routes!(endpoints::rotate_secret))
        .routes(routes!(endpoints::secret))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::show))
        .routes(routes!(deliveries::retry))
        .routes(routes!(deliveries::cancel))
        .routes(routes!(dead::list))
        .routes(routes!(audit::list))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::document))
}

async fn unknown_route(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(Code::NotFound, format!("there is no route {path}; /openapi.json lists them all"))
}

async fn wrong_method(method: Method) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("{method} is not answered here; the header `allow` says what is"),
    )
}
