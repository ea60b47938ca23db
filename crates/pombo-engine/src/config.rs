//! Settings of the engine, and which of them cannot go together.

use std::time::Duration;

use pombo_domain::limits;
use pombo_domain::retry::RetryPolicy;
use pombo_store::sessions::Roles;

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Name of this process for people: host name and process id.
    pub node: String,
    /// What this process does.
    pub roles: Roles,
    /// Lease of its session (setting `lease.ttl`).
    pub lease_ttl: Duration,
    /// Retry policy of endpoints that have none (setting `retry`).
    pub retry: RetryPolicy,
    /// Deadline of an attempt for endpoints that have none (setting `delivery.timeout`).
    pub timeout: Duration,
    /// `user-agent` of attempts (setting `delivery.user_agent`).
    pub user_agent: String,
    /// Attempts in flight at once, over all endpoints (setting `delivery.slots`).
    pub slots: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            node: "pombo".to_owned(),
            roles: Roles { api: true, relay: true, deliver: true },
            lease_ttl: limits::LEASE_TTL_DEFAULT,
            retry: RetryPolicy::default(),
            timeout: limits::TIMEOUT_DEFAULT,
            user_agent: concat!("Pombo/", env!("CARGO_PKG_VERSION")).to_owned(),
            slots: 512,
        }
    }
}

/// Settings that cannot go together, in words for the person who set them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An attempt could outlive the lease, and be made twice (docs/protocol.md K3).
    #[error(
        "lease.ttl ({lease:?}) is too short for delivery.timeout ({timeout:?}): the lease must be more than the \
         timeout and {headroom:?}, else an attempt could outlive it and be made twice. Raise lease.ttl or lower \
         delivery.timeout.",
        headroom = limits::LEASE_HEADROOM
    )]
    LeaseTooShort {
        /// `lease.ttl`.
        lease: Duration,
        /// `delivery.timeout`.
        timeout: Duration,
    },
    /// A number out of its range.
    #[error("{setting} must be between {min} and {max}")]
    Range {
        /// Name of the setting.
        setting: &'static str,
        /// Smallest allowed.
        min: String,
        /// Largest allowed.
        max: String,
    },
}

impl EngineConfig {
    /// Checks what cannot go together.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(limits::TIMEOUT_MIN..=limits::TIMEOUT_MAX).contains(&self.timeout) {
            let (min, max) = (format!("{:?}", limits::TIMEOUT_MIN), format!("{:?}", limits::TIMEOUT_MAX));
            return Err(ConfigError::Range { setting: "delivery.timeout", min, max });
        }
        if !(1..=65_536).contains(&self.slots) {
            let (min, max) = ("1".to_owned(), "65536".to_owned());
            return Err(ConfigError::Range { setting: "delivery.slots", min, max });
        }
        if !self.lease_allows(self.timeout) {
            return Err(ConfigError::LeaseTooShort { lease: self.lease_ttl, timeout: self.timeout });
        }
        Ok(())
    }

    /// Whether an endpoint may have this deadline under the lease (K3).
    pub fn lease_allows(&self, timeout: Duration) -> bool {
        timeout + limits::LEASE_HEADROOM < self.lease_ttl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_shorter_than_request_timeout_is_refused_naming_both_settings() {
        let config = EngineConfig { lease_ttl: Duration::from_secs(17), ..EngineConfig::default() };
        let text = config.check().expect_err("refused").to_string();
        assert!(text.contains("lease.ttl (17s)") && text.contains("delivery.timeout (10s)"), "{text}");
        let config = EngineConfig { lease_ttl: Duration::from_secs(18), ..EngineConfig::default() };
        assert_eq!(config.check(), Ok(()));
    }
}
