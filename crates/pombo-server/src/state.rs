//! What every handler may use.

use std::sync::Arc;

use pombo_engine::EngineHandle;
use pombo_store::Store;

use crate::auth::KeyCache;
use crate::extract::Budget;

/// Settings of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerConfig {
    /// `--dev`: a request without a key acts as admin, if it comes to a loopback `Host` and no web page could
    /// have sent it.
    pub dev: bool,
    /// Bytes of request bodies in memory at once, over all requests; above them calls answer 503.
    pub body_bytes_max: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { dev: false, body_bytes_max: 256 * 1024 * 1024 }
    }
}

/// What every handler may use; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    engine: EngineHandle,
    config: ServerConfig,
    keys: KeyCache,
    budget: Budget,
}

impl AppState {
    /// Over a running engine.
    pub fn new(engine: EngineHandle, config: ServerConfig) -> Self {
        let budget = Budget::new(config.body_bytes_max);
        Self(Arc::new(Inner { engine, config, keys: KeyCache::default(), budget }))
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.0.engine
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &**self.0.engine.store()
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    pub(crate) fn keys(&self) -> &KeyCache {
        &self.0.keys
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }
}
