//! The catalogue: every endpoint in memory, at one version of the configuration (docs/protocol.md A3).

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::{Endpoint, EndpointStatus};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::retry::RetryPolicy;
use pombo_signature::{Signer, SigningSecret};
use pombo_store::endpoints::{CatalogChanges, CatalogEndpoint};

/// An endpoint with everything an attempt needs, made once per change.
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    /// Custom headers, ready to be cloned.
    pub(crate) headers: HeaderMap,
    /// Its own policy, or the installation's.
    pub(crate) retry: RetryPolicy,
    /// Whether the first attempt is made at once.
    pub(crate) starts_at_once: bool,
    pub(crate) shard: i16,
    signers: Vec<(Signer, Option<Timestamp>)>,
    pub(crate) hold_until: Option<Timestamp>,
}

impl Target {
    fn new(entry: CatalogEndpoint, fallback: &RetryPolicy) -> Self {
        let mut headers = HeaderMap::new();
        for header in &entry.endpoint.settings.headers {
            // Both were checked when the endpoint was made; what does not parse any more is left out, not sent wrong.
            if let (Ok(name), Ok(mut value)) =
                (header.name.parse::<HeaderName>(), HeaderValue::from_str(header.value.expose()))
            {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let signers = entry
            .secrets
            .iter()
            .filter_map(|secret| match SigningSecret::parse(secret.secret.expose()) {
                Ok(parsed) => Some((Signer::new(&parsed), secret.expires_at)),
                Err(error) => {
                    let id = entry.endpoint.id;
                    tracing::error!(endpoint.id = %id, "A signing secret of {id} cannot be used: {error}");
                    None
                }
            })
            .collect();
        let retry = entry.endpoint.retry.clone().unwrap_or_else(|| fallback.clone());
        let first_delay = retry.delay_before(1, &mut crate::random::rng());
        Self {
            shard: entry.endpoint.shard(),
            starts_at_once: first_delay.is_none_or(|delay| delay.is_zero()),
            retry,
            endpoint: entry.endpoint,
            headers,
            signers,
            hold_until: entry.hold_until,
        }
    }

    /// The signers that count at `now`: the current secret's first, then those in their overlap.
    pub(crate) fn signers(&self, now: Timestamp) -> Vec<&Signer> {
        let counts = |until: &Option<Timestamp>| until.is_none_or(|until| until > now);
        self.signers.iter().filter(|(_, until)| counts(until)).map(|(signer, _)| signer).collect()
    }

    /// Whether deliveries are sent to it.
    pub(crate) fn is_active(&self) -> bool {
        self.endpoint.status == EndpointStatus::Active
    }
}

/// Every endpoint at one version.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) version: i64,
    targets: HashMap<EndpointId, Arc<Target>>,
    by_tenant: HashMap<TenantId, Vec<Arc<Target>>>,
}

impl Catalog {
    pub(crate) fn target(&self, id: EndpointId) -> Option<&Arc<Target>> {
        self.targets.get(&id)
    }

    /// The endpoints of a tenant, in order of id, so that every process matches in the same order.
    pub(crate) fn of_tenant(&self, tenant: TenantId) -> &[Arc<Target>] {
        self.by_tenant.get(&tenant).map_or(&[], Vec::as_slice)
    }

    /// The catalogue after these changes; `fallback` is the policy of endpoints without their own. Unchanged
    /// endpoints are shared, not copied.
    pub(crate) fn with(&self, changes: CatalogChanges, fallback: &RetryPolicy) -> Self {
        let mut next = Self {
            version: changes.version.max(self.version),
            targets: self.targets.clone(),
            by_tenant: self.by_tenant.clone(),
        };
        for id in changes.deleted {
            next.remove(id);
        }
        for entry in changes.changed {
            next.remove(entry.endpoint.id);
            let target = Arc::new(Target::new(entry, fallback));
            let of_tenant = next.by_tenant.entry(target.endpoint.tenant_id).or_default();
            let place = of_tenant.partition_point(|other| other.endpoint.id < target.endpoint.id);
            of_tenant.insert(place, Arc::clone(&target));
            next.targets.insert(target.endpoint.id, target);
        }
        next
    }

    /// The first of these endpoints that the tenant does not have.
    pub(crate) fn unknown_target(&self, tenant: TenantId, targets: &[EndpointId]) -> Option<EndpointId> {
        let has =
            |id: &EndpointId| self.target(*id).is_some_and(|target| target.endpoint.tenant_id == tenant);
        targets.iter().find(|id| !has(id)).copied()
    }

    fn remove(&mut self, id: EndpointId) {
        let Some(old) = self.targets.remove(&id) else { return };
        if let Some(of_tenant) = self.by_tenant.get_mut(&old.endpoint.tenant_id) {
            of_tenant.retain(|target| target.endpoint.id != id);
            if of_tenant.is_empty() {
                self.by_tenant.remove(&old.endpoint.tenant_id);
            }
        }
    }
}
