//! Endpoints, their secrets, and the catalogue that every process keeps in memory (docs/protocol.md A3).

use std::time::Duration;

use async_trait::async_trait;

use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::{DisabledReason, Endpoint, EndpointSettings, EndpointStatus};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::name::TenantName;
use pombo_domain::secret::SecretText;

use crate::admin::Actor;
use crate::error::Result;
use crate::page::{Page, PageRequest};

/// An endpoint to be made.
#[derive(Debug, Clone)]
pub struct NewEndpoint {
    /// Its id, new.
    pub id: EndpointId,
    /// Whose; created where it is new.
    pub tenant: TenantName,
    /// What a person set.
    pub settings: EndpointSettings,
    /// The signing secret as shown, `whsec_…`.
    pub secret: SecretText,
}

/// A signing secret of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSecret {
    /// As shown, `whsec_…`.
    pub secret: SecretText,
    /// When it was made.
    pub created_at: Timestamp,
    /// Until when an older one still signs; `None` for the current one.
    pub expires_at: Option<Timestamp>,
}

/// An endpoint with what is needed to send to it.
#[derive(Debug, Clone)]
pub struct CatalogEndpoint {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The current secret first, then older ones that have not expired, newest first.
    pub secrets: Vec<EndpointSecret>,
    /// End of a hold by Retry-After, if one lies ahead.
    pub hold_until: Option<Timestamp>,
}

/// What changed in the configuration.
#[derive(Debug, Clone)]
pub struct CatalogChanges {
    /// The version this brings a catalogue to.
    pub version: i64,
    /// Endpoints made or changed since, with everything.
    pub changed: Vec<CatalogEndpoint>,
    /// Endpoints deleted since.
    pub deleted: Vec<EndpointId>,
}

/// What a list of endpoints is narrowed by.
#[derive(Debug, Clone, Default)]
pub struct EndpointFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only with this status.
    pub status: Option<EndpointStatus>,
}

/// A new status of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusChange {
    /// Sending goes on; the backlog wakes (P1).
    Resume,
    /// Sending stops, nothing is dropped.
    Pause,
    /// As pause, and it needs a person. An endpoint that is disabled already keeps its reason.
    Disable(DisabledReason),
}

/// Endpoints. Every change bumps `config.version` and writes an audit entry in the same transaction.
/// Deleted endpoints are unknown to every method here.
#[async_trait]
pub trait Endpoints {
    /// Makes an endpoint, active, with its secret sealed.
    async fn create_endpoint(&self, new: NewEndpoint, actor: &Actor) -> Result<Endpoint>;

    /// One endpoint; `None` for an unknown or deleted id. `tenant` narrows: another tenant's is `None`.
    async fn endpoint(&self, id: EndpointId, tenant: Option<TenantId>) -> Result<Option<Endpoint>>;

    /// Endpoints, newest first, by (created_at, id).
    async fn endpoints(&self, filter: &EndpointFilter, page: PageRequest) -> Result<Page<Endpoint>>;

    /// Replaces the settings, only while the endpoint is still at `version`; `None` if it is unknown or was
    /// changed meanwhile (the caller reads again and repeats).
    async fn update_endpoint(
        &self,
        id: EndpointId,
        version: i64,
        settings: EndpointSettings,
        actor: &Actor,
    ) -> Result<Option<Endpoint>>;

    /// Pauses, resumes or disables. Doing it twice is doing it once. `None` for an unknown id.
    async fn set_endpoint_status(
        &self,
        id: EndpointId,
        change: StatusChange,
        actor: &Actor,
    ) -> Result<Option<Endpoint>>;

    /// Makes `secret` the current one; those before sign too until `overlap` is over, or their own earlier end
    /// (zero: at once none of them, for then one has leaked). `None` for an unknown id.
    async fn rotate_secret(
        &self,
        id: EndpointId,
        secret: SecretText,
        overlap: Duration,
        actor: &Actor,
    ) -> Result<Option<Endpoint>>;

    /// The secrets of an endpoint, current first. Audited: a person looks at them. `None` for an unknown id.
    async fn reveal_secrets(&self, id: EndpointId, actor: &Actor) -> Result<Option<Vec<EndpointSecret>>>;

    /// Marks an endpoint deleted (P3). Its live rows are cancelled by [`crate::parking::Parking::cancel_rows_of`] and the
    /// sweep. `false` for an unknown id.
    async fn delete_endpoint(&self, id: EndpointId, actor: &Actor) -> Result<bool>;

    /// What changed since `version`; `None` gives everything that exists.
    async fn catalog_changes(&self, since: Option<i64>) -> Result<CatalogChanges>;
}
