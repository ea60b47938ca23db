//! From rows to what they mean.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use pombo_domain::endpoint::{
    CustomHeader, DisabledReason, Endpoint, EndpointSettings, EndpointStatus, EndpointUrl, HeaderStyle,
    StoreResponses,
};
use pombo_domain::event_type::{Pattern, Subscription};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::retry::{RetryDocument, RetryPolicy};
use pombo_domain::secret::SecretText;
use pombo_store::StoreError;
use pombo_store::keyring::{Keyring, Place};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::error::Fault;
use crate::time::At;

/// Where the values of an endpoint's headers are sealed.
pub(crate) const HEADERS: &str = "endpoint.headers";
/// Where signing secrets are sealed.
pub(crate) const SECRET: &str = "secret";

pub(crate) fn corrupt(table: &'static str, column: &'static str, id: impl Display) -> Fault {
    Fault::Store(StoreError::Corrupt { table, column, id: id.to_string() })
}

/// Reads a text of a row.
pub(crate) fn parse<T: FromStr>(
    table: &'static str,
    column: &'static str,
    id: impl Display,
    text: &str,
) -> Result<T, Fault> {
    text.parse().map_err(|_| corrupt(table, column, id))
}

/// A counter that a CHECK keeps from being negative.
pub(crate) fn small(count: i16) -> u16 {
    u16::try_from(count).unwrap_or(0)
}

/// Configuration is one row, made by the first migration.
pub(crate) fn missing_config() -> StoreError {
    StoreError::Schema("pombo.config has no row: run `pombo migrate`, or restore the database".to_owned())
}

pub(crate) fn instant(row: &PgRow, column: &str) -> sqlx::Result<pombo_domain::clock::Timestamp> {
    Ok(row.try_get::<At, _>(column)?.0)
}

pub(crate) fn maybe_instant(
    row: &PgRow,
    column: &str,
) -> sqlx::Result<Option<pombo_domain::clock::Timestamp>> {
    Ok(row.try_get::<Option<At>, _>(column)?.map(|at| at.0))
}

/// The bytes that the seal of the nth secret of an endpoint is bound to.
pub(crate) fn secret_row(endpoint: Uuid, n: i32) -> Vec<u8> {
    [endpoint.as_bytes().as_slice(), &n.to_be_bytes()].concat()
}

/// Columns that [`endpoint`] reads, of `endpoint AS e` and `tenant AS t`.
macro_rules! endpoint_columns {
    () => {
        "e.id, e.tenant_id, t.name AS tenant, e.url, e.description, e.event_types, e.header_names,
       e.header_values, e.header_style, e.retry::text AS retry, e.timeout_ms, e.max_concurrency,
       e.retry_client_errors, e.store_responses, e.metadata::text AS metadata, e.status, e.disabled_reason,
       e.version, e.created_at, e.updated_at"
    };
}
pub(crate) use endpoint_columns;

/// An endpoint from its row.
pub(crate) fn endpoint(row: &PgRow, keyring: &Keyring) -> Result<Endpoint, Fault> {
    let id: Uuid = row.try_get("id")?;
    let unreadable = |column| corrupt("endpoint", column, id);
    let reason: Option<&str> = row.try_get("disabled_reason")?;
    Ok(Endpoint {
        id: EndpointId(id),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        tenant: parse("tenant", "name", id, row.try_get("tenant")?)?,
        settings: settings(row, id, keyring)?,
        status: EndpointStatus::from_word(row.try_get("status")?).ok_or_else(|| unreadable("status"))?,
        disabled_reason: match reason {
            Some(word) => Some(DisabledReason::from_word(word).ok_or_else(|| unreadable("disabled_reason"))?),
            None => None,
        },
        version: row.try_get("version")?,
        created_at: instant(row, "created_at")?,
        updated_at: instant(row, "updated_at")?,
    })
}

fn settings(row: &PgRow, id: Uuid, keyring: &Keyring) -> Result<EndpointSettings, Fault> {
    let unreadable = |column| corrupt("endpoint", column, id);
    let retry: Option<&str> = row.try_get("retry")?;
    let timeout_ms: Option<i32> = row.try_get("timeout_ms")?;
    Ok(EndpointSettings {
        url: EndpointUrl::parse(row.try_get("url")?).map_err(|_| unreadable("url"))?,
        description: row.try_get("description")?,
        subscription: subscription(row.try_get("event_types")?, id)?,
        headers: headers(row, id, keyring)?,
        header_style: HeaderStyle::from_word(row.try_get("header_style")?)
            .ok_or_else(|| unreadable("header_style"))?,
        retry: retry.map(|text| policy(text, id)).transpose()?,
        timeout: timeout_ms.map(|millis| Duration::from_millis(millis.unsigned_abs().into())),
        max_concurrency: small(row.try_get("max_concurrency")?),
        retry_client_errors: row.try_get("retry_client_errors")?,
        store_responses: StoreResponses::from_word(row.try_get("store_responses")?)
            .ok_or_else(|| unreadable("store_responses"))?,
        metadata: serde_json::from_str(row.try_get("metadata")?).map_err(|_| unreadable("metadata"))?,
    })
}

fn policy(text: &str, id: Uuid) -> Result<RetryPolicy, Fault> {
    let document: Option<RetryDocument> = serde_json::from_str(text).ok();
    document
        .and_then(|document| RetryPolicy::try_from(document).ok())
        .ok_or_else(|| corrupt("endpoint", "retry", id))
}

fn subscription(patterns: Option<Vec<String>>, id: Uuid) -> Result<Subscription, Fault> {
    let Some(patterns) = patterns else { return Ok(Subscription::All) };
    // A pattern that cannot be read must not become "everything".
    let patterns: Option<Vec<Pattern>> = patterns.iter().map(|text| text.parse().ok()).collect();
    patterns
        .and_then(|patterns| Subscription::from_patterns(patterns).ok())
        .ok_or_else(|| corrupt("endpoint", "event_types", id))
}

fn headers(row: &PgRow, id: Uuid, keyring: &Keyring) -> Result<Vec<CustomHeader>, Fault> {
    let names: Vec<String> = row.try_get("header_names")?;
    let values: Vec<Vec<u8>> = row.try_get("header_values")?;
    let place = Place { table: HEADERS, row: id.as_bytes() };
    let open =
        |(name, sealed): (String, Vec<u8>)| Ok(CustomHeader { name, value: keyring.open(place, &sealed)? });
    names.into_iter().zip(values).map(open).collect()
}

/// What the columns of an endpoint's settings are written with.
pub(crate) struct SettingsColumns {
    pub(crate) url: String,
    pub(crate) description: Option<String>,
    pub(crate) event_types: Option<Vec<String>>,
    pub(crate) header_names: Vec<String>,
    pub(crate) header_values: Vec<Vec<u8>>,
    pub(crate) header_style: &'static str,
    pub(crate) retry: Option<String>,
    pub(crate) timeout_ms: Option<i32>,
    pub(crate) max_concurrency: i16,
    pub(crate) retry_client_errors: bool,
    pub(crate) store_responses: &'static str,
    pub(crate) metadata: String,
}

impl SettingsColumns {
    pub(crate) fn of(settings: &EndpointSettings, id: EndpointId, keyring: &Keyring) -> Self {
        let place = Place { table: HEADERS, row: id.0.as_bytes() };
        Self {
            url: settings.url.as_str().to_owned(),
            description: settings.description.clone(),
            event_types: match &settings.subscription {
                Subscription::All => None,
                Subscription::Patterns(patterns) => {
                    Some(patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect())
                }
            },
            header_names: settings.headers.iter().map(|header| header.name.clone()).collect(),
            header_values: settings
                .headers
                .iter()
                .map(|header| seal(keyring, place, &header.value))
                .collect(),
            header_style: settings.header_style.as_str(),
            retry: settings.retry.as_ref().map(|policy| {
                serde_json::to_string(&RetryDocument::from(policy)).expect("a retry policy is JSON")
            }),
            timeout_ms: settings.timeout.map(|span| i32::try_from(span.as_millis()).unwrap_or(i32::MAX)),
            max_concurrency: i16::try_from(settings.max_concurrency).unwrap_or(i16::MAX),
            retry_client_errors: settings.retry_client_errors,
            store_responses: settings.store_responses.as_str(),
            metadata: serde_json::to_string(&settings.metadata).expect("a JSON object is JSON"),
        }
    }
}

pub(crate) fn seal(keyring: &Keyring, place: Place<'_>, secret: &SecretText) -> Vec<u8> {
    keyring.seal(place, secret, &mut rand::rng())
}
