//! Reading what a person sets on an endpoint.

use std::time::Duration;

use pombo_domain::endpoint::{
    CustomHeader, EndpointSettings, EndpointUrl, HeaderError, HeaderStyle, StoreResponses,
};
use pombo_domain::event_type::{EventTypeError, Pattern, Subscription};
use pombo_domain::limits;
use pombo_domain::retry::{RetryDocument, RetryPolicy};
use pombo_domain::span;
use pombo_engine::EngineHandle;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::fields::{
    Fields, Given, Wrong, read_boolean, read_integer, read_list, read_object, read_prose, read_text,
    read_typed,
};
use crate::shapes::FieldError;

/// What stands for the value of a header, which is often a credential. Given back, it keeps the value.
pub(super) const HIDDEN: &str = "***";

/// What becomes of one setting.
enum Change<T> {
    Keep,
    /// `null`: back to its default.
    Reset,
    Set(T),
}

impl<T> Change<T> {
    fn apply(self, setting: &mut T, default: impl FnOnce() -> T) {
        match self {
            Self::Keep => {}
            Self::Reset => *setting = default(),
            Self::Set(value) => *setting = value,
        }
    }

    fn apply_optional(self, setting: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Reset => *setting = None,
            Self::Set(value) => *setting = Some(value),
        }
    }
}

/// The changes that a request asks for; of a new endpoint, the changes to the defaults.
pub(super) struct Changes {
    pub(super) url: Option<EndpointUrl>,
    description: Change<String>,
    subscription: Change<Subscription>,
    headers: Change<Vec<(String, String)>>,
    header_style: Change<HeaderStyle>,
    retry: Change<RetryPolicy>,
    timeout: Change<Duration>,
    max_concurrency: Change<u16>,
    retry_client_errors: Change<bool>,
    store_responses: Change<StoreResponses>,
    metadata: Change<Map<String, Value>>,
}

impl Changes {
    /// Reads every setting; what is wrong is noted in `fields`.
    pub(super) fn read(fields: &mut Fields<'_>, engine: &EngineHandle) -> Self {
        let url = change(fields, "url", |raw| read_url(raw, engine));
        if matches!(url, Change::Reset) {
            fields.error("url", "required", "must not be null");
        }
        change(fields, "signature", read_signature);
        Self {
            url: if let Change::Set(url) = url { Some(url) } else { None },
            description: change(fields, "description", |raw| read_prose(raw, limits::DESCRIPTION_BYTES_MAX)),
            subscription: change(fields, "eventTypes", read_subscription),
            headers: change(fields, "headers", read_headers),
            header_style: change(fields, "headerStyle", |raw| {
                read_word(raw, HeaderStyle::from_word, "\"standard\", \"x-webhook\" or \"both\"")
            }),
            retry: change(fields, "retry", read_retry),
            timeout: change(fields, "timeoutMs", |raw| read_timeout(raw, engine)),
            max_concurrency: change(fields, "maxConcurrency", |raw| {
                read_integer(raw, 1..=i64::from(limits::CONCURRENCY_MAX)).map(|count| count as u16)
            }),
            retry_client_errors: change(fields, "retryClientErrors", read_boolean),
            store_responses: change(fields, "storeResponses", |raw| {
                read_word(raw, StoreResponses::from_word, "\"failures\", \"all\" or \"none\"")
            }),
            metadata: change(fields, "metadata", read_metadata),
        }
    }

    /// Settings of a new endpoint.
    ///
    /// # Errors
    /// A header that is wrong.
    pub(super) fn create(self, url: EndpointUrl) -> Result<EndpointSettings, FieldError> {
        let mut settings = EndpointSettings {
            url,
            description: None,
            subscription: Subscription::All,
            headers: Vec::new(),
            header_style: HeaderStyle::Standard,
            retry: None,
            timeout: None,
            max_concurrency: limits::CONCURRENCY_DEFAULT,
            retry_client_errors: false,
            store_responses: StoreResponses::Failures,
            metadata: Map::new(),
        };
        self.apply(&mut settings)?;
        Ok(settings)
    }

    /// Changes settings.
    ///
    /// # Errors
    /// A header that is wrong.
    pub(super) fn apply(self, settings: &mut EndpointSettings) -> Result<(), FieldError> {
        if let Some(url) = self.url {
            settings.url = url;
        }
        let headers = match self.headers {
            Change::Set(headers) => Change::Set(merge_headers(headers, &settings.headers)?),
            Change::Reset => Change::Reset,
            Change::Keep => Change::Keep,
        };
        headers.apply(&mut settings.headers, Vec::new);
        self.description.apply_optional(&mut settings.description);
        self.subscription.apply(&mut settings.subscription, || Subscription::All);
        self.header_style.apply(&mut settings.header_style, || HeaderStyle::Standard);
        self.retry.apply_optional(&mut settings.retry);
        self.timeout.apply_optional(&mut settings.timeout);
        self.max_concurrency.apply(&mut settings.max_concurrency, || limits::CONCURRENCY_DEFAULT);
        self.retry_client_errors.apply(&mut settings.retry_client_errors, || false);
        self.store_responses.apply(&mut settings.store_responses, || StoreResponses::Failures);
        self.metadata.apply(&mut settings.metadata, Map::new);
        Ok(())
    }
}

fn change<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    read: impl FnOnce(&RawValue) -> Result<T, Wrong>,
) -> Change<T> {
    match fields.given(name) {
        Given::Absent => Change::Keep,
        Given::Null => Change::Reset,
        Given::Value(raw) => fields.noted(name, read(raw)).map_or(Change::Keep, Change::Set),
    }
}

fn read_url(raw: &RawValue, engine: &EngineHandle) -> Result<EndpointUrl, Wrong> {
    let url =
        EndpointUrl::parse(&read_text(raw)?).map_err(|error| Wrong::new("invalid", error.to_string()))?;
    let policy = engine.address_policy();
    policy.check_url(&url).map_err(|refusal| Wrong::new("not_allowed", refusal.to_string()))?;
    Ok(url)
}

fn read_signature(raw: &RawValue) -> Result<(), Wrong> {
    read_word(raw, |word| (word == "v1").then_some(()), "\"v1\"")
}

fn read_word<T>(raw: &RawValue, read: impl Fn(&str) -> Option<T>, words: &str) -> Result<T, Wrong> {
    read(&read_text(raw)?).ok_or_else(|| Wrong::new("invalid", format!("must be {words}")))
}

fn read_subscription(raw: &RawValue) -> Result<Subscription, Wrong> {
    let items = read_list(raw)?;
    let (mut patterns, mut wrongs) = (Vec::new(), Vec::new());
    for (n, item) in items.into_iter().take(limits::PATTERNS_MAX + 1).enumerate() {
        let read = read_text(item).and_then(|text| text.parse::<Pattern>().map_err(pattern_wrong));
        match read {
            Ok(pattern) => patterns.push(pattern),
            Err(wrong) => wrongs.push(wrong.at(format!("[{n}]"))),
        }
    }
    if let Some(wrong) = Wrong::all(wrongs) {
        return Err(wrong);
    }
    Subscription::from_patterns(patterns).map_err(pattern_wrong)
}

fn pattern_wrong(error: EventTypeError) -> Wrong {
    Wrong::new("invalid", error.to_string())
}

fn read_headers(raw: &RawValue) -> Result<Vec<(String, String)>, Wrong> {
    let entries = read_object(raw)?;
    let (mut headers, mut wrongs) = (Vec::with_capacity(entries.len().min(64)), Vec::new());
    for (name, value) in entries.into_iter().take(limits::HEADERS_MAX + 1) {
        match read_text(value) {
            Ok(value) => headers.push((name.into_owned(), value.into_owned())),
            Err(wrong) => wrongs.push(wrong.at(format!(".{name}"))),
        }
    }
    Wrong::all(wrongs).map_or(Ok(headers), Err)
}

/// Checks new headers, with `***` standing for the value the endpoint has already.
fn merge_headers(
    new: Vec<(String, String)>,
    existing: &[CustomHeader],
) -> Result<Vec<CustomHeader>, FieldError> {
    let mut merged = Vec::with_capacity(new.len());
    for (name, value) in new {
        let kept = existing.iter().find(|header| header.name.eq_ignore_ascii_case(&name));
        let value = match kept {
            _ if value != HIDDEN => value,
            Some(header) => header.value.expose().to_owned(),
            None => {
                let message = "must be the value itself: there is none yet that `***` could stand for";
                return Err(FieldError::new(format!("headers.{name}"), "invalid", message));
            }
        };
        merged.push((name, value));
    }
    CustomHeader::check_all(merged).map_err(|error| {
        let code = match error {
            HeaderError::TooMany => "too_large",
            HeaderError::Twice(_) => "duplicate",
            HeaderError::Reserved(_) => "not_allowed",
            HeaderError::Name(_) | HeaderError::Value(_) => "invalid",
        };
        FieldError::new("headers", code, header_message(&error))
    })
}

/// As a sentence that goes on after the name of the field.
fn header_message(error: &HeaderError) -> String {
    match error {
        HeaderError::TooMany => error.to_string(),
        _ => format!("holds something wrong: {error}"),
    }
}

fn read_retry(raw: &RawValue) -> Result<RetryPolicy, Wrong> {
    let document: RetryDocument = read_typed(raw)?;
    RetryPolicy::try_from(document).map_err(|error| Wrong::new("invalid", error.to_string()))
}

fn read_timeout(raw: &RawValue, engine: &EngineHandle) -> Result<Duration, Wrong> {
    let range = limits::TIMEOUT_MIN.as_millis() as i64..=limits::TIMEOUT_MAX.as_millis() as i64;
    let timeout = Duration::from_millis(read_integer(raw, range)? as u64);
    let config = engine.config();
    if config.lease_allows(timeout) {
        return Ok(timeout);
    }
    Err(Wrong::new(
        "range",
        format!(
            "is too long for `lease.ttl` ({}) of this installation: the lease must be more than the timeout and \
             {}, else an attempt could outlive it and be made twice. Lower timeoutMs or raise `lease.ttl`",
            span::show(config.lease_ttl),
            span::show(limits::LEASE_HEADROOM),
        ),
    ))
}

fn read_metadata(raw: &RawValue) -> Result<Map<String, Value>, Wrong> {
    if raw.get().len() > limits::METADATA_BYTES_MAX {
        return Err(Wrong::new("too_large", format!("must be at most {} bytes", limits::METADATA_BYTES_MAX)));
    }
    let map: Map<String, Value> = serde_json::from_str(raw.get())
        .map_err(|_| Wrong::new("type", "must be a JSON object of valid text, nested at most 128 deep"))?;
    // Not every database keeps it inside JSON.
    if map.iter().any(|(key, value)| key.contains('\0') || holds_nul(value)) {
        return Err(Wrong::new("invalid", "must not hold the character U+0000"));
    }
    Ok(map)
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(map) => map.iter().any(|(key, value)| key.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
