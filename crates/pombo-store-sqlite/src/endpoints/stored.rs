//! How an endpoint is stored: columns for what SQL needs, JSON for the rest, headers sealed.

use rusqlite::params;

use pombo_domain::endpoint::{
    CustomHeader, DisabledReason, Endpoint, EndpointSettings, EndpointStatus, EndpointUrl, HeaderStyle,
    StoreResponses,
};
use pombo_domain::event_type::{Pattern, Subscription};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::retry::{RetryDocument, RetryPolicy};
use pombo_domain::secret::SecretText;
use pombo_store::endpoints::NewEndpoint;
use pombo_store::keyring::{Keyring, Place};

use crate::Tx;
use crate::error::Fault;
use crate::rows::{self, Fields};

/// What [`read_endpoint`] reads.
pub(super) const COLUMNS: &str = "SELECT e.id, e.tenant_id,\n\
    (SELECT t.name FROM pombo_tenant AS t WHERE t.id = e.tenant_id), e.url, e.description, e.event_types,\n\
    e.headers, e.header_style, e.retry, e.timeout, e.max_concurrency, e.retry_client_errors, e.store_responses,\n\
    e.metadata, e.status, e.disabled_reason, e.version, e.created_at, e.updated_at\n\
    FROM pombo_endpoint AS e";

pub(super) fn read_endpoint(row: &Fields<'_>, ring: &Keyring) -> Result<Endpoint, Fault> {
    let id = EndpointId(row.uuid(0, "id")?);
    Ok(Endpoint {
        id,
        tenant_id: TenantId(row.uuid(1, "tenant_id")?),
        tenant: row.parse(2, "tenant")?,
        settings: read_settings(row, ring, id)?,
        status: row.word(14, "status", EndpointStatus::from_word)?,
        disabled_reason: row.opt_word(15, "disabled_reason", DisabledReason::from_word)?,
        version: row.int(16, "version")?,
        created_at: row.time(17, "created_at")?,
        updated_at: row.time(18, "updated_at")?,
    })
}

fn read_settings(row: &Fields<'_>, ring: &Keyring, id: EndpointId) -> Result<EndpointSettings, Fault> {
    Ok(EndpointSettings {
        url: EndpointUrl::parse(row.text(3, "url")?).map_err(|_| row.corrupt("url"))?,
        description: row.opt_text(4, "description")?.map(str::to_owned),
        subscription: read_subscription(row)?,
        headers: open_headers(row, ring, id)?,
        header_style: row.word(7, "header_style", HeaderStyle::from_word)?,
        retry: read_retry(row)?,
        timeout: row.opt_span(9, "timeout")?,
        max_concurrency: row.int(10, "max_concurrency")?,
        retry_client_errors: row.flag(11, "retry_client_errors")?,
        store_responses: row.word(12, "store_responses", StoreResponses::from_word)?,
        metadata: serde_json::from_str(row.text(13, "metadata")?).map_err(|_| row.corrupt("metadata"))?,
    })
}

fn read_subscription(row: &Fields<'_>) -> Result<Subscription, Fault> {
    let Some(text) = row.opt_text(5, "event_types")? else { return Ok(Subscription::All) };
    let patterns: Vec<Pattern> = serde_json::from_str(text).map_err(|_| row.corrupt("event_types"))?;
    Ok(Subscription::Patterns(patterns))
}

fn read_retry(row: &Fields<'_>) -> Result<Option<RetryPolicy>, Fault> {
    let Some(text) = row.opt_text(8, "retry")? else { return Ok(None) };
    let document: RetryDocument = serde_json::from_str(text).map_err(|_| row.corrupt("retry"))?;
    RetryPolicy::try_from(document).map(Some).map_err(|_| row.corrupt("retry"))
}

fn place(id: &EndpointId) -> Place<'_> {
    Place { table: "endpoint.headers", row: id.0.as_bytes() }
}

/// Seals a JSON list of `[name, value]`.
pub(super) fn seal_headers(ring: &Keyring, id: EndpointId, headers: &[CustomHeader]) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let pairs: Vec<_> = headers.iter().map(|header| (&header.name, header.value.expose())).collect();
    let json = serde_json::to_string(&pairs).expect("pairs of texts are JSON");
    Some(ring.seal(place(&id), &SecretText::new(json), &mut rand::rng()))
}

fn open_headers(row: &Fields<'_>, ring: &Keyring, id: EndpointId) -> Result<Vec<CustomHeader>, Fault> {
    let Some(sealed) = row.opt_bytes(6, "headers")? else { return Ok(Vec::new()) };
    let json = ring.open(place(&id), sealed)?;
    let pairs: Vec<(String, String)> =
        serde_json::from_str(json.expose()).map_err(|_| row.corrupt("headers"))?;
    Ok(pairs.into_iter().map(|(name, value)| CustomHeader { name, value: SecretText::new(value) }).collect())
}

/// The texts of a settings row.
struct Written {
    event_types: Option<String>,
    retry: Option<String>,
    metadata: String,
    timeout: Option<i64>,
}

fn written(settings: &EndpointSettings) -> Written {
    let event_types = match &settings.subscription {
        Subscription::All => None,
        Subscription::Patterns(patterns) => {
            Some(serde_json::to_string(patterns).expect("patterns are JSON texts"))
        }
    };
    let retry = settings
        .retry
        .as_ref()
        .map(|policy| serde_json::to_string(&RetryDocument::from(policy)).expect("a policy is plain JSON"));
    Written {
        event_types,
        retry,
        metadata: serde_json::to_string(&settings.metadata).expect("a JSON object is JSON"),
        timeout: settings.timeout.map(|timeout| timeout.as_micros() as i64),
    }
}

pub(super) fn insert(tx: &Tx<'_>, ring: &Keyring, new: &NewEndpoint, version: i64) -> Result<(), Fault> {
    let settings = &new.settings;
    let texts = written(settings);
    rows::change(
        tx,
        "-- pombo:insert_endpoint\n\
         INSERT INTO pombo_endpoint (id, tenant_id, url, description, event_types, headers, header_style, retry,\n\
             timeout, max_concurrency, retry_client_errors, store_responses, metadata, status, version,\n\
             created_at, updated_at)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 'active', ?14, ?15, ?15)",
        params![
            new.id.0.as_bytes(),
            TenantId::of(&new.tenant).0.as_bytes(),
            settings.url.as_str(),
            settings.description,
            texts.event_types,
            seal_headers(ring, new.id, &settings.headers),
            settings.header_style.as_str(),
            texts.retry,
            texts.timeout,
            settings.max_concurrency,
            settings.retry_client_errors,
            settings.store_responses.as_str(),
            texts.metadata,
            version,
            tx.now.as_micros(),
        ],
    )?;
    Ok(())
}

pub(super) fn write_settings(
    tx: &Tx<'_>,
    id: EndpointId,
    settings: &EndpointSettings,
    headers: Option<&[u8]>,
    version: i64,
) -> Result<(), Fault> {
    let texts = written(settings);
    rows::change(
        tx,
        "-- pombo:update_endpoint\n\
         UPDATE pombo_endpoint SET url = ?2, description = ?3, event_types = ?4, headers = ?5, header_style = ?6,\n\
             retry = ?7, timeout = ?8, max_concurrency = ?9, retry_client_errors = ?10, store_responses = ?11,\n\
             metadata = ?12, version = ?13, updated_at = ?14\n\
         WHERE id = ?1",
        params![
            id.0.as_bytes(),
            settings.url.as_str(),
            settings.description,
            texts.event_types,
            headers,
            settings.header_style.as_str(),
            texts.retry,
            texts.timeout,
            settings.max_concurrency,
            settings.retry_client_errors,
            settings.store_responses.as_str(),
            texts.metadata,
            version,
            tx.now.as_micros(),
        ],
    )?;
    Ok(())
}
