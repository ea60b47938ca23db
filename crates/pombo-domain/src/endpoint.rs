//! Endpoints: where events go, and how.

use std::fmt;
use std::time::Duration;

use url::{Host, Url};

use crate::clock::Timestamp;
use crate::event_type::Subscription;
use crate::id::{EndpointId, TenantId};
use crate::limits;
use crate::name::TenantName;
use crate::retry::RetryPolicy;
use crate::secret::SecretText;

/// The address of an endpoint: parsed once by the WHATWG rules and kept in its serialised form.
///
/// What this type refuses needs no policy: schemes other than http and https, user names, fragments, port
/// 0, empty labels. Whether the host may be reached is the address policy's business (`pombo-egress`).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EndpointUrl(Url);

/// Why a text is not the URL of an endpoint. Reads alone, after the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL at all.
    #[error("must be an absolute URL such as https://example.com/hooks ({0})")]
    Syntax(String),
    /// Another scheme.
    #[error("must begin with https:// (or http:// where the installation allows it)")]
    Scheme,
    /// `user:password@`.
    #[error("must not hold a user name or password: use a header")]
    Userinfo,
    /// `#fragment`.
    #[error("must not hold a fragment (#…): it is never sent")]
    Fragment,
    /// Port 0.
    #[error("must not use port 0")]
    PortZero,
    /// A host with an empty label (`a..b`, a trailing dot after an address), or non-ASCII leftovers.
    #[error("must have a host name without empty labels")]
    Host,
    /// Over [`limits::URL_BYTES_MAX`].
    #[error("must be at most {max} bytes long", max = limits::URL_BYTES_MAX)]
    TooLong,
}

impl EndpointUrl {
    /// Parses and normalises: lower-case host, punycode, default port left out, one trailing dot of a name
    /// removed.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > limits::URL_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let mut url = Url::parse(text).map_err(|error| UrlError::Syntax(error.to_string()))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(UrlError::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Userinfo);
        }
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        if url.port() == Some(0) {
            return Err(UrlError::PortZero);
        }
        normalise_host(&mut url)?;
        if url.as_str().len() > limits::URL_BYTES_MAX { Err(UrlError::TooLong) } else { Ok(Self(url)) }
    }

    /// The parsed URL.
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// The serialised form.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Scheme, host and port, without path and query: fit for logs.
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    /// Whether requests go over TLS.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }
}

fn normalise_host(url: &mut Url) -> Result<(), UrlError> {
    let Some(Host::Domain(domain)) = url.host() else {
        return if url.host().is_some() { Ok(()) } else { Err(UrlError::Host) };
    };
    let name = domain.strip_suffix('.').unwrap_or(domain).to_owned();
    if name.is_empty() || !name.is_ascii() || name.split('.').any(str::is_empty) {
        return Err(UrlError::Host);
    }
    // Without its dot the name may read as an address (`127.0.0.1..`); parse it again and be strict.
    url.set_host(Some(&name)).map_err(|_| UrlError::Host)?;
    if matches!(url.host(), Some(Host::Domain(_))) { Ok(()) } else { Err(UrlError::Host) }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EndpointUrl {
    /// The origin only: paths and queries of webhook URLs often carry secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointUrl({}/…)", self.origin())
    }
}

/// Whether an endpoint is sent to. (`circuit open` is a state of its lane, not of the endpoint.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndpointStatus {
    /// Deliveries are sent.
    Active,
    /// A person paused it; deliveries wait.
    Paused,
    /// It was disabled; deliveries wait, and it needs a person.
    Disabled,
}

impl EndpointStatus {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Disabled].into_iter().find(|status| status.as_str() == word)
    }
}

/// Why an endpoint is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DisabledReason {
    /// The receiver answered 410.
    Gone,
    /// A person disabled it.
    Person,
}

impl DisabledReason {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Person => "person",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Gone, Self::Person].into_iter().find(|reason| reason.as_str() == word)
    }
}

/// Which signature headers an attempt carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderStyle {
    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    /// `X-Webhook-ID`, `X-Webhook-Timestamp`, `X-Webhook-Signature: t=…,v1=…`.
    XWebhook,
    /// All six.
    Both,
}

impl HeaderStyle {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::XWebhook => "x-webhook",
            Self::Both => "both",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Standard, Self::XWebhook, Self::Both].into_iter().find(|style| style.as_str() == word)
    }
}

/// Of which attempts the response body is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreResponses {
    /// Of attempts that were not a success.
    Failures,
    /// Of all.
    All,
    /// Of none.
    None,
}

impl StoreResponses {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::All => "all",
            Self::None => "none",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Failures, Self::All, Self::None].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A header that every attempt to an endpoint carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomHeader {
    /// Lower-case RFC 9110 name.
    pub name: String,
    /// Visible ASCII; often a credential.
    pub value: SecretText,
}

/// Why a custom header is refused. Reads alone, after the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not an RFC 9110 token.
    #[error("{0:?} is not a header name")]
    Name(String),
    /// A header that Pombo or HTTP itself sets.
    #[error("`{0}` is set by Pombo and cannot be overridden")]
    Reserved(String),
    /// Given twice (names are compared without case).
    #[error("`{0}` is given twice")]
    Twice(String),
    /// Not visible ASCII, or too long.
    #[error("the value of `{0}` must be visible ASCII, at most {max} bytes", max = limits::HEADER_VALUE_BYTES_MAX)]
    Value(String),
    /// Too many.
    #[error("must hold at most {max} headers", max = limits::HEADERS_MAX)]
    TooMany,
}

/// Headers that belong to the connection, the framing, or Pombo.
const RESERVED_HEADERS: [&str; 18] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "user-agent",
    "accept-encoding",
    "x-webhook-id",
    "x-webhook-timestamp",
    "x-webhook-signature",
];

impl CustomHeader {
    /// Checks a list of headers as a caller gave them.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn check_all(headers: Vec<(String, String)>) -> Result<Vec<Self>, HeaderError> {
        if headers.len() > limits::HEADERS_MAX {
            return Err(HeaderError::TooMany);
        }
        let mut checked: Vec<Self> = Vec::with_capacity(headers.len());
        for (name, value) in headers {
            let header = Self::check(name, value)?;
            if checked.iter().any(|earlier| earlier.name == header.name) {
                return Err(HeaderError::Twice(header.name));
            }
            checked.push(header);
        }
        Ok(checked)
    }

    fn check(name: String, value: String) -> Result<Self, HeaderError> {
        let Ok(parsed) = http::HeaderName::from_bytes(name.as_bytes()) else {
            return Err(HeaderError::Name(name));
        };
        let name = parsed.as_str().to_owned();
        if RESERVED_HEADERS.contains(&name.as_str()) || name.starts_with("webhook-") {
            return Err(HeaderError::Reserved(name));
        }
        let visible = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let trimmed = !value.starts_with(' ') && !value.ends_with(' ');
        if value.len() > limits::HEADER_VALUE_BYTES_MAX || !visible || !trimmed {
            return Err(HeaderError::Value(name));
        }
        Ok(Self { name, value: SecretText::new(value) })
    }
}

/// What a person sets on an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointSettings {
    /// Where to.
    pub url: EndpointUrl,
    /// What it is for, for people.
    pub description: Option<String>,
    /// Which events it gets.
    pub subscription: Subscription,
    /// Headers of every attempt.
    pub headers: Vec<CustomHeader>,
    /// Which signature headers.
    pub header_style: HeaderStyle,
    /// When attempts are made; `None` = the installation's policy.
    pub retry: Option<RetryPolicy>,
    /// Deadline of an attempt; `None` = the installation's.
    pub timeout: Option<Duration>,
    /// Most attempts in flight at once.
    pub max_concurrency: u16,
    /// Retry 4xx answers too.
    pub retry_client_errors: bool,
    /// Of which attempts the response is kept.
    pub store_responses: StoreResponses,
    /// The caller's own notes: a JSON object of at most 4 KiB.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// An endpoint of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Its id.
    pub id: EndpointId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The tenant's name.
    pub tenant: TenantName,
    /// What a person set.
    pub settings: EndpointSettings,
    /// Whether it is sent to.
    pub status: EndpointStatus,
    /// Why it is disabled; only then.
    pub disabled_reason: Option<DisabledReason>,
    /// The version of the configuration at its last change (docs/protocol.md A3).
    pub version: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

impl std::ops::Deref for Endpoint {
    type Target = EndpointSettings;
    fn deref(&self) -> &EndpointSettings {
        &self.settings
    }
}

impl Endpoint {
    /// The shard its deliveries belong to: the first byte of SHA-256 of the id, so 0–255 (C3).
    pub fn shard(&self) -> i16 {
        shard_of(self.id)
    }
}

/// The shard of an endpoint (see [`Endpoint::shard`]).
pub fn shard_of(id: EndpointId) -> i16 {
    use sha2::{Digest, Sha256};
    i16::from(Sha256::digest(id.0.as_bytes())[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_normalised() {
        for (given, kept) in [
            ("HTTPS://Example.COM:443/Hooks?a=1", "https://example.com/Hooks?a=1"),
            ("https://example.com.", "https://example.com/"),
            ("https://münchen.example/", "https://xn--mnchen-3ya.example/"),
            ("https://[2606:4700::1111]:8443/x", "https://[2606:4700::1111]:8443/x"),
            ("https://0x7f.1/", "https://127.0.0.1/"),
        ] {
            assert_eq!(EndpointUrl::parse(given).expect("a URL").as_str(), kept, "{given}");
        }
    }

    #[test]
    fn urls_that_need_no_policy_to_refuse_are_refused() {
        for (given, error) in [
            ("https://user:pw@example.com/", UrlError::Userinfo),
            ("https://user@example.com/", UrlError::Userinfo),
            ("https://example.com/#x", UrlError::Fragment),
            ("https://example.com:0/", UrlError::PortZero),
            ("https://a..b/", UrlError::Host),
            ("https://127.0.0.1../", UrlError::Host),
            ("https://./", UrlError::Host),
            ("ftp://example.com/", UrlError::Scheme),
            ("javascript:alert(1)", UrlError::Scheme),
        ] {
            assert_eq!(EndpointUrl::parse(given), Err(error), "{given}");
        }
        for given in
            ["", "example.com", "https://", "https://[fe80::1%25eth0]/", "https://example.com:65536/"]
        {
            assert!(matches!(EndpointUrl::parse(given), Err(UrlError::Syntax(_))), "{given}");
        }
        let long = format!("https://example.com/{}", "a".repeat(2048));
        assert_eq!(EndpointUrl::parse(&long), Err(UrlError::TooLong));
    }

    #[test]
    fn debug_of_a_url_hides_path_and_query() {
        let url = EndpointUrl::parse("https://example.com/T0/SECRET?token=x").expect("a URL");
        assert_eq!(format!("{url:?}"), "EndpointUrl(https://example.com/…)");
    }

    #[test]
    fn custom_headers_cannot_override_what_pombo_sets() {
        let check = |name: &str, value: &str| CustomHeader::check_all(vec![(name.into(), value.into())]);
        assert_eq!(check("Authorization", "Bearer x").expect("taken")[0].name, "authorization");
        for name in ["Host", "Webhook-Signature", "webhook-anything", "X-Webhook-ID", "Transfer-Encoding"] {
            assert!(matches!(check(name, "x"), Err(HeaderError::Reserved(_))), "{name}");
        }
        assert!(matches!(check("a b", "x"), Err(HeaderError::Name(_))));
        assert!(matches!(check("x-a", "a\r\nb: c"), Err(HeaderError::Value(_))));
        let twice = vec![("X-A".into(), "1".into()), ("x-a".into(), "2".into())];
        assert_eq!(CustomHeader::check_all(twice), Err(HeaderError::Twice("x-a".into())));
    }
}
