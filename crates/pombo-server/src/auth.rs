//! Who calls, and what they may do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method};
use pombo_domain::clock::Timestamp;
use pombo_domain::id::{KeyId, TenantId};
use pombo_domain::name::TenantName;
use pombo_domain::secret::SecretText;
use pombo_store::admin::{Actor, ApiKey, NewApiKey, Scopes};
use pombo_store::{Store, StoreError};
use rand::CryptoRng;
use sha2::{Digest, Sha256};

use crate::extract::is_json;
use crate::problem::{Code, Problem};
use crate::state::AppState;

/// What every key starts with.
const PREFIX: &str = "pk_";
/// Random bytes of a key, shown as 43 characters of URL-safe base64.
const KEY_BYTES: usize = 32;
const KEY_CHARS: usize = PREFIX.len() + 43;
/// How long a key is believed without asking the database: a deleted key works this much longer.
const BELIEVED: Duration = Duration::from_secs(5);
/// Keys remembered at once.
const REMEMBERED_MAX: usize = 1024;

/// Stores the first key of an installation and gives its text, to be shown once. `None` where there is a key
/// already: exactly one of several processes gets it.
///
/// # Errors
/// The database.
pub async fn bootstrap(
    store: &dyn Store,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<Option<SecretText>, StoreError> {
    let mut random = zeroize::Zeroizing::new([0; KEY_BYTES]);
    rng.fill_bytes(random.as_mut());
    let mut id = [0; 10];
    rng.fill_bytes(&mut id);
    let text = SecretText::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random.as_slice())));
    let key = ApiKey {
        id: KeyId::new(now, id),
        name: "bootstrap".to_owned(),
        scopes: Scopes { admin: true, publish: true, read: true },
        tenant_id: None,
    };
    let created = store.create_first_key(NewApiKey { key, hash: hash(text.expose()) }).await?;
    Ok(created.then_some(text))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// What is known of a caller.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    name: Arc<str>,
    scopes: Scopes,
    tenant: Option<TenantId>,
}

impl Caller {
    /// Who acts, for the audit log.
    pub(crate) fn actor(&self, reason: Option<String>) -> Actor {
        Actor { name: self.name.to_string(), reason }
    }

    /// What reading is narrowed to: the key's tenant, or the one asked for.
    pub(crate) fn narrowed(&self, asked: Option<TenantId>) -> Result<Option<TenantId>, Problem> {
        match (self.tenant, asked) {
            (Some(own), Some(asked)) if own != asked => Err(other_tenant()),
            (own, asked) => Ok(own.or(asked)),
        }
    }

    /// The key's tenant: what reading by id is narrowed to.
    pub(crate) const fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// The tenant something is made for.
    pub(crate) fn tenant_for(&self, asked: Option<TenantName>) -> Result<TenantName, Problem> {
        let is_named = asked.is_some();
        let name = asked.unwrap_or_else(TenantName::default_tenant);
        match self.tenant {
            Some(own) if own != TenantId::of(&name) && is_named => Err(other_tenant()),
            Some(own) if own != TenantId::of(&name) => {
                Err(Problem::field("tenant", "required", "must be named with an API key of one tenant"))
            }
            _ => Ok(name),
        }
    }
}

fn other_tenant() -> Problem {
    Problem::new(Code::OtherTenant, "this API key belongs to another tenant than the one named")
}

/// A caller that may do everything.
pub(crate) struct Admin(pub(crate) Caller);
/// A caller that may publish.
pub(crate) struct Publisher(pub(crate) Caller);
/// A caller that may read.
pub(crate) struct Reader(pub(crate) Caller);

macro_rules! needs {
    ($($extractor:ident: $scope:ident),*) => {$(
        impl FromRequestParts<AppState> for $extractor {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
                let caller = state.caller(parts).await?;
                if caller.scopes.admin || caller.scopes.$scope {
                    Ok(Self(caller))
                } else {
                    let scope = stringify!($scope);
                    Err(Problem::new(Code::Forbidden, format!("this call needs an API key with scope `{scope}`")))
                }
            }
        }
    )*};
}
needs!(Admin: admin, Publisher: publish, Reader: read);

/// Keys that the database confirmed a moment ago.
///
/// They are looked up by their SHA-256, so how long a look-up takes says nothing about a key.
#[derive(Default)]
pub(crate) struct KeyCache(Mutex<HashMap<[u8; 32], (Instant, Caller)>>);

impl KeyCache {
    fn get(&self, hash: &[u8; 32], now: Instant) -> Option<Caller> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, caller) = known.get(hash)?;
        (now.duration_since(*at) < BELIEVED).then(|| caller.clone())
    }

    fn put(&self, hash: [u8; 32], caller: Caller, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, (at, _)| now.duration_since(*at) < BELIEVED);
        }
        if known.len() < REMEMBERED_MAX {
            known.insert(hash, (now, caller));
        }
    }
}

impl AppState {
    /// The caller of a request.
    ///
    /// # Errors
    /// 401 without a key that exists; the database.
    async fn caller(&self, parts: &Parts) -> Result<Caller, Problem> {
        let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
            return if self.config().dev { dev_caller(parts) } else { Err(unauthorized(MISSING)) };
        };
        let key = bearer(value).ok_or_else(|| unauthorized(MALFORMED))?;
        let hash = hash(key);
        let now = Instant::now();
        if let Some(caller) = self.keys().get(&hash, now) {
            return Ok(caller);
        }
        let Some(key) = self.store().api_key(hash).await? else { return Err(unauthorized(UNKNOWN)) };
        let caller = Caller { name: key.id.to_string().into(), scopes: key.scopes, tenant: key.tenant_id };
        self.keys().put(hash, caller.clone(), now);
        Ok(caller)
    }
}

const MISSING: &str = "send the header `authorization: Bearer pk_…` with an API key";
const MALFORMED: &str = "the header must read `authorization: Bearer pk_…`, with the whole key";
const UNKNOWN: &str = "there is no such API key";

fn unauthorized(detail: &str) -> Problem {
    Problem::new(Code::Unauthorized, detail)
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"pombo\""))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    let key = key.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && key.starts_with(PREFIX) && key.len() == KEY_CHARS)
        .then_some(key)
}

/// `--dev`: a request without a key acts as admin, unless a web page could have sent it.
///
/// A page that the developer looks at can reach a loopback port: through a name of its own that resolves to
/// 127.0.0.1 (the `Host` gives it away), or with a "simple" POST that needs no preflight (which cannot carry
/// `application/json`, and carries an `Origin`).
fn dev_caller(parts: &Parts) -> Result<Caller, Problem> {
    let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let target_is_loopback = parts.uri.host().is_none_or(is_loopback_host);
    let is_local = host.is_some_and(|host| is_loopback_host(without_port(host))) && target_is_loopback;
    if !is_local || !origin_is_loopback(&parts.headers) {
        return Err(unauthorized("without an API key only requests to localhost are taken (`--dev`)"));
    }
    let may_change = !matches!(parts.method, Method::GET | Method::HEAD);
    if may_change && parts.method == Method::POST && !is_json(&parts.headers) {
        return Err(unauthorized(
            "without an API key this needs the header `content-type: application/json` (`--dev`)",
        ));
    }
    Ok(Caller { name: "dev".into(), scopes: Scopes { admin: true, publish: true, read: true }, tenant: None })
}

fn origin_is_loopback(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|text| text.split_once("://"));
    host.is_some_and(|(_, host)| is_loopback_host(without_port(host)))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

fn is_loopback_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(method: Method, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/v1/events");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn dev_takes_only_what_no_web_page_could_send() {
        let json = ("content-type", "application/json");
        for host in ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
            assert!(dev_caller(&parts(Method::POST, &[("host", host), json])).is_ok(), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080", "", "127.0.0.1.nip.io"] {
            assert!(dev_caller(&parts(Method::GET, &[("host", host)])).is_err(), "{host}");
        }
        let local = ("host", "localhost:8080");
        assert!(dev_caller(&parts(Method::GET, &[])).is_err());
        assert!(dev_caller(&parts(Method::GET, &[local])).is_ok());
        assert!(dev_caller(&parts(Method::POST, &[local])).is_err());
        assert!(dev_caller(&parts(Method::POST, &[local, ("content-type", "text/plain")])).is_err());
        assert!(dev_caller(&parts(Method::DELETE, &[local])).is_ok());
        assert!(dev_caller(&parts(Method::GET, &[local, ("origin", "https://evil.example")])).is_err());
        assert!(dev_caller(&parts(Method::GET, &[local, ("origin", "http://localhost:3000")])).is_ok());
        assert!(dev_caller(&parts(Method::GET, &[local, ("origin", "null")])).is_err());
    }

    #[test]
    fn only_whole_bearer_keys_are_looked_up() {
        let key = format!("pk_{}", "a".repeat(43));
        let value = |text: &str| HeaderValue::from_str(text).expect("a header value");
        assert_eq!(bearer(&value(&format!("Bearer {key}"))), Some(key.as_str()));
        assert_eq!(bearer(&value(&format!("bearer  {key}"))), Some(key.as_str()));
        for text in ["Bearer", "Bearer pk_short", &format!("Basic {key}"), &format!("Bearer {key}x")] {
            assert_eq!(bearer(&value(text)), None, "{text}");
        }
    }

    fn caller(tenant: Option<&str>) -> Caller {
        let tenant = tenant.map(|name| TenantId::of(&name.parse().expect("a tenant name")));
        Caller { name: "key_x".into(), scopes: Scopes::default(), tenant }
    }

    #[test]
    fn a_key_of_one_tenant_reaches_no_other() {
        let acme: TenantName = "acme".parse().expect("a tenant name");
        let other: TenantName = "other".parse().expect("a tenant name");
        let bound = caller(Some("acme"));
        assert_eq!(bound.tenant_for(Some(acme.clone())).expect("its own"), acme);
        assert_eq!(bound.tenant_for(Some(other.clone())).expect_err("refused").status(), 403);
        assert_eq!(bound.narrowed(Some(TenantId::of(&other))).expect_err("refused").status(), 403);
        assert_eq!(bound.narrowed(None).expect("narrowed"), Some(TenantId::of(&acme)));
        assert_eq!(bound.tenant_for(None).expect_err("the default is another's").status(), 422);
        assert_eq!(caller(None).tenant_for(None).expect("any"), TenantName::default_tenant());
    }

    #[test]
    fn the_cache_forgets_and_is_bounded() {
        let cache = KeyCache::default();
        let now = Instant::now();
        for n in 0..=REMEMBERED_MAX {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&(n as u64).to_be_bytes());
            cache.put(hash, caller(None), now);
        }
        assert_eq!(cache.0.lock().expect("not poisoned").len(), REMEMBERED_MAX);
        assert!(cache.get(&[0; 32], now).is_some());
        assert!(cache.get(&[0; 32], now + BELIEVED).is_none());
        cache.put([9; 32], caller(None), now + BELIEVED);
        assert_eq!(cache.0.lock().expect("not poisoned").len(), 1);
    }
}
