//! The reference: OpenAPI 3.1, made from the same code as the routes.

use std::sync::OnceLock;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, RefOr, ResponseBuilder};

use crate::api;
use crate::problem::Code;
use crate::shapes::{FieldError, ProblemDocument};

const PROBLEM: &str = "application/problem+json";
const SCHEME: &str = "apiKey";

/// The whole document.
pub fn openapi() -> OpenApi {
    let (_, mut document) = api::routes().split_for_parts();
    document.info.description = Some(description());
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            describe_problems(path, operation);
        }
    }
    document
}

/// What holds for every call, with the list of problems.
fn description() -> String {
    let mut text =
        "Webhooks that are never lost.\n\nErrors are RFC 9457 `application/problem+json`; `type` says which \
        problem it is:\n\n| type | status | title |\n|---|---|---|\n"
            .to_owned();
    for code in Code::ALL {
        let (status, word, title) = code.facts();
        text.extend(["| `/errors/", word, "` | ", status.as_str(), " | ", title, " |\n"]);
    }
    text.push_str(
        "\nA new problem may be added to the list; treat one that you do not know by its status.\n",
    );
    text
}

/// What stands in the document beside the routes.
pub(crate) fn outline() -> OpenApi {
    #[derive(utoipa::OpenApi)]
    #[openapi(
        info(title = "Pombo", license(name = "MIT OR Apache-2.0")),
        components(schemas(ProblemDocument, FieldError)),
        tags(
            (name = "Events", description = "What happened"),
            (name = "Endpoints", description = "Where to"),
            (name = "Deliveries", description = "One event on its way to one endpoint"),
            (name = "Audit", description = "Who did what"),
            (name = "Operation", description = "For whoever runs it; without a key"),
        )
    )]
    struct Outline;

    let mut document = Outline::openapi();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("pk_…")
        .description(Some("An API key"))
        .build();
    document.components.get_or_insert_default().add_security_scheme(SCHEME, SecurityScheme::Http(bearer));
    document.security = Some(vec![SecurityRequirement::new(SCHEME, Vec::<String>::new())]);
    document
}

/// The problems that follow from what a call is, rather than from what it does.
fn describe_problems(path: &str, operation: &mut Operation) {
    let mut codes = Vec::new();
    if path.starts_with("/v1/") {
        codes.extend([Code::Unauthorized, Code::Forbidden, Code::Invalid, Code::Internal, Code::Unavailable]);
    }
    if path.contains("{id}") {
        codes.push(Code::NotFound);
    }
    if operation.request_body.is_some() {
        codes.extend([Code::NotJson, Code::Timeout, Code::TooLarge, Code::UnsupportedMediaType]);
    }
    for code in codes {
        let (status, _, title) = code.facts();
        let answers = &mut operation.responses.responses;
        answers.entry(status.as_u16().to_string()).or_insert_with(|| problem_response(code, title));
    }
}

fn problem_response(code: Code, title: &str) -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemDocument"))).build();
    let mut response = ResponseBuilder::new().description(title).content(PROBLEM, content);
    match code {
        Code::Unauthorized => response = response.header("www-authenticate", Header::default()),
        Code::Unavailable => response = response.header("retry-after", Header::default()),
        _ => {}
    }
    RefOr::T(response.build())
}

/// The operations of a path.
pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
    [get, put, post, delete, options, head, patch, trace].into_iter().flatten()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "Operation", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(crate) async fn document() -> Response {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let json = || serde_json::to_vec(&openapi()).expect("the reference is plain JSON").into();
    let json: Bytes = DOCUMENT.get_or_init(json).clone();
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}
