//! A whole service for one test: database file, engine, server, receiver.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pombo_domain::id::{KeyId, TenantId};
use pombo_egress::{AddressPolicy, EgressClient, EgressConfig};
use pombo_engine::{Engine, EngineConfig, EngineHandle, EngineParts};
use pombo_server::{AppState, ServeLimits, Served, ServerConfig, bootstrap, router, serve};
use pombo_store::Store;
use pombo_store::admin::{ApiKey, NewApiKey, Scopes};
use pombo_store::keyring::Keyring;
use pombo_store_sqlite::{SqliteConfig, SqliteStore};
use pombo_testkit::receiver::Receiver;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::Client;

/// Longest wait for a condition.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// How a service is set up.
pub(crate) struct Setup {
    pub(crate) server: ServerConfig,
    pub(crate) limits: ServeLimits,
    pub(crate) engine: EngineConfig,
    pub(crate) egress: EgressConfig,
    /// The one key: what it may do, and for which tenant.
    pub(crate) key: Option<(Scopes, Option<&'static str>)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            limits: ServeLimits::default(),
            engine: EngineConfig::default(),
            egress: EgressConfig { policy: AddressPolicy::dev(), ..EgressConfig::default() },
            key: None,
        }
    }
}

/// A running service.
pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) receiver: Receiver,
    pub(crate) engine: EngineHandle,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Served>,
    _running: Engine,
    _directory: TempDir,
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = SqliteConfig::new(directory.path().join("pombo.db"), Arc::new(Keyring::new(&[7; 32])));
        let store: Arc<dyn Store> = SqliteStore::open(config).expect("a database");
        store.migrate().await.expect("migrated");
        let egress = EgressClient::new(setup.egress).expect("a client");
        let parts = EngineParts { store: Arc::clone(&store), egress, config: setup.engine };
        let running = Engine::start(parts).await.expect("an engine");
        let engine = running.handle();
        let key = make_key(&*store, &engine, setup.key).await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router(AppState::new(engine.clone(), setup.server));
        let served = tokio::spawn(serve(listener, router, setup.limits, async {
            // A dropped sender means the test is over: stop as well.
            let _ = stopped.await;
        }));
        Self {
            client: Client { address, key: Some(key) },
            receiver: Receiver::start().await.expect("a receiver"),
            engine,
            address,
            stop: Some(stop),
            served,
            _running: running,
            _directory: directory,
        }
    }

    /// Makes an endpoint at the receiver's path for all types, with more fields.
    pub(crate) async fn endpoint(&self, path: &str, more: Value) -> String {
        let mut fields = json!({"url": self.receiver.url(path)});
        let more = more.as_object().expect("an object").clone();
        fields.as_object_mut().expect("an object").extend(more);
        let created = self.client.post("/v1/endpoints", fields.to_string()).await.expect(201);
        created["id"].as_str().expect("an id").to_owned()
    }

    /// Publishes, and gives the event's id.
    pub(crate) async fn publish(&self, event: Value) -> String {
        let answer = self.client.post("/v1/events", event.to_string()).await.expect(202);
        answer["id"].as_str().expect("an id").to_owned()
    }

    /// Gets `path` until the JSON fulfils the condition.
    pub(crate) async fn until(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let answer = self.client.get(path).await.expect(200);
            if condition(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{path} never came to it: {answer:#}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The one delivery of an event, once it has this status.
    pub(crate) async fn delivery(&self, event: &str, status: &str) -> Value {
        let path = format!("/v1/deliveries?event={event}");
        let page = self.until(&path, |page| page["data"][0]["status"] == status).await;
        page["data"][0].clone()
    }

    /// Asks the server to end; it is awaited with [`Service::ended`].
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).expect("the server still runs");
        }
    }

    pub(crate) async fn ended(self) -> Served {
        tokio::time::timeout(WAIT_MAX, self.served).await.expect("ends in time").expect("no panic")
    }
}

async fn make_key(
    store: &dyn Store,
    engine: &EngineHandle,
    wanted: Option<(Scopes, Option<&'static str>)>,
) -> String {
    let Some((scopes, tenant)) = wanted else {
        let key = bootstrap(store, engine.now(), &mut rand::rng()).await.expect("stored");
        return key.expect("the first key").expose().to_owned();
    };
    let text = format!("pk_{}", "k".repeat(43));
    let tenant_id = tenant.map(|name| TenantId::of(&name.parse().expect("a tenant name")));
    let id = KeyId::new(engine.now(), [3; 10]);
    let key = ApiKey { id, name: "test".to_owned(), scopes, tenant_id };
    let hash = Sha256::digest(text.as_bytes()).into();
    assert!(store.create_first_key(NewApiKey { key, hash }).await.expect("stored"));
    text
}
