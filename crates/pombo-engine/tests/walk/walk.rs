//! An engine, its database and a receiver for one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use pombo_domain::attempt::Attempt;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::{Endpoint, EndpointSettings, EndpointUrl, HeaderStyle, StoreResponses};
use pombo_domain::event::{Draft, Payload};
use pombo_domain::event_type::Subscription;
use pombo_domain::id::{DeliveryId, EndpointId};
use pombo_domain::retry::{Backoff, Jitter, RetryPolicy};
use pombo_domain::secret::SecretText;
use pombo_egress::{AddressPolicy, EgressClient, EgressConfig};
use pombo_engine::{Engine, EngineConfig, EngineHandle, EngineParts, Published};
use pombo_store::Store;
use pombo_store::admin::Actor;
use pombo_store::endpoints::{NewEndpoint, StatusChange};
use pombo_store::keyring::Keyring;
use pombo_store::reading::DeliveryRecord;
use pombo_store_sqlite::{SqliteConfig, SqliteStore};
use pombo_testkit::database::TempSqlite;
use pombo_testkit::receiver::{Hit, Receiver};

use crate::faulty::{Faults, FaultyStore};

/// The number of the next endpoint.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// The longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The signing secret of every endpoint at first.
pub(crate) const SECRET: &str = "whsec_dGhlIHBpZ2VvbiBrbm93cyB0aGUgd2F5";

/// Everything of one test.
pub(crate) struct Walk {
    pub(crate) engine: EngineHandle,
    pub(crate) running: Engine,
    /// The database itself, beside all faults.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) receiver: Receiver,
    /// The file, where it is one.
    pub(crate) database: Option<TempSqlite>,
}

/// Settings under which failures are tried again soon.
pub(crate) fn config() -> EngineConfig {
    EngineConfig { retry: schedule(&[0, 20, 20, 20, 20]), ..EngineConfig::default() }
}

/// A schedule without jitter, in milliseconds.
pub(crate) fn schedule(millis: &[u64]) -> RetryPolicy {
    let delays = millis.iter().map(|millis| Duration::from_millis(*millis)).collect();
    RetryPolicy { backoff: Backoff::Schedule(delays), jitter: Jitter::None }
}

pub(crate) fn person() -> Actor {
    Actor { name: "key_test".to_owned(), reason: None }
}

pub(crate) fn draft(n: u32) -> Draft {
    Draft {
        tenant: "acme".parse().expect("a tenant"),
        kind: "order.paid".parse().expect("a type"),
        payload: Payload::Data(Bytes::from(format!("{{ \"n\": {n} }}"))),
        client_key: None,
        targets: None,
        ordering_key: None,
        resource_version: None,
        deliver_at: None,
    }
}

/// A client to the receiver's own address.
pub(crate) fn egress() -> EgressConfig {
    EgressConfig { policy: AddressPolicy::dev(), ..EgressConfig::default() }
}

impl Walk {
    pub(crate) async fn start() -> Self {
        Self::with(config(), egress()).await
    }

    pub(crate) async fn with(config: EngineConfig, egress: EgressConfig) -> Self {
        let database = TempSqlite::create();
        let file = SqliteConfig::new(database.path(), Arc::new(Keyring::new(&[7; 32])));
        let store = SqliteStore::open(file).expect("a database");
        Self { database: Some(database), ..Self::on(store, config, egress).await }
    }

    /// A walk over any database.
    pub(crate) async fn on(store: Arc<dyn Store>, config: EngineConfig, egress: EgressConfig) -> Self {
        store.migrate().await.expect("migrated");
        let faults = Arc::new(Faults::default());
        let running = start_engine(&store, &faults, config, egress).await;
        let receiver = Receiver::start().await.expect("a receiver");
        Self { engine: running.handle(), running, store, faults, receiver, database: None }
    }

    /// Makes an endpoint at the receiver's path, as the API would.
    pub(crate) async fn endpoint(&self, path: &str) -> Endpoint {
        self.endpoint_with(path, |_| {}).await
    }

    pub(crate) async fn endpoint_with(
        &self,
        path: &str,
        change: impl FnOnce(&mut EndpointSettings),
    ) -> Endpoint {
        let mut settings = EndpointSettings {
            url: EndpointUrl::parse(&self.receiver.url(path)).expect("a URL"),
            description: None,
            subscription: Subscription::All,
            headers: Vec::new(),
            header_style: HeaderStyle::Standard,
            retry: None,
            timeout: None,
            max_concurrency: 8,
            retry_client_errors: false,
            store_responses: StoreResponses::Failures,
            metadata: serde_json::Map::new(),
        };
        change(&mut settings);
        let new = NewEndpoint {
            id: EndpointId(Uuid::from_u128(NEXT.fetch_add(1, Ordering::Relaxed).into())),
            tenant: "acme".parse().expect("a tenant"),
            settings,
            secret: SecretText::new(SECRET.to_owned()),
        };
        let endpoint = self.store.create_endpoint(new, &person()).await.expect("an endpoint is made");
        self.engine.configuration_changed();
        endpoint
    }

    /// Pauses or resumes an endpoint, as the API would.
    pub(crate) async fn set_status(&self, endpoint: EndpointId, change: StatusChange) {
        let changed = self.store.set_endpoint_status(endpoint, change, &person()).await;
        changed.expect("the status is set").expect("the endpoint exists");
        self.engine.configuration_changed();
    }

    pub(crate) async fn publish(&self, n: u32) -> Published {
        self.engine.publish(draft(n)).await.expect("an event is accepted")
    }

    pub(crate) async fn publish_many(&self, count: u32) -> Vec<Published> {
        let answers = self.engine.publish_all((0..count).map(draft).collect()).await;
        answers.into_iter().map(|answer| answer.expect("an event is accepted")).collect()
    }

    /// Waits until `path` has got this many requests.
    pub(crate) async fn hits(&self, path: &str, count: usize) -> Vec<Hit> {
        let at_path = |hits: &[Hit]| hits.iter().filter(|hit| hit.path == path).count() >= count;
        self.receiver.wait_for(LIMIT, at_path).await.expect("the requests come");
        self.receiver.hits_at(path)
    }

    /// Waits until the delivery of the event to the endpoint has the status.
    pub(crate) async fn delivery(
        &self,
        event: &Published,
        endpoint: EndpointId,
        status: DeliveryStatus,
    ) -> DeliveryRecord {
        let id = delivery_id(event, endpoint);
        let look = async || {
            let record = self.store.delivery(id, None).await.expect("a delivery is read").expect("it exists");
            if record.status == status { Ok(record) } else { Err(format!("{record:?}")) }
        };
        until(look).await
    }

    pub(crate) async fn delivered(&self, event: &Published, endpoint: EndpointId) -> DeliveryRecord {
        self.delivery(event, endpoint, DeliveryStatus::Delivered).await
    }

    pub(crate) async fn attempts(&self, event: &Published, endpoint: EndpointId) -> Vec<Attempt> {
        self.store.attempts(delivery_id(event, endpoint)).await.expect("attempts are read")
    }

    /// Runs one SQL statement beside the engine, as an application (or a disaster) would.
    pub(crate) fn execute(&self, sql: &str) -> usize {
        let file = rusqlite::Connection::open(self.database.as_ref().expect("a file").path())
            .expect("the file opens");
        file.busy_timeout(LIMIT).expect("a timeout is set");
        file.execute(sql, ()).expect("the statement works")
    }

    /// Waits until nothing is live, then proves that nothing is lost or doubled.
    pub(crate) async fn is_sound(&self) {
        let look = async || {
            let report = self.store.check().await.map_err(|error| error.to_string())?;
            if report.live == 0 { Ok(report) } else { Err(format!("{} are live", report.live)) }
        };
        let report = until(look).await;
        assert_eq!(report.findings, [], "{report:?}");
    }
}

pub(crate) async fn start_engine(
    store: &Arc<dyn Store>,
    faults: &Arc<Faults>,
    config: EngineConfig,
    egress: EgressConfig,
) -> Engine {
    let faulty = FaultyStore { inner: Arc::clone(store), faults: Arc::clone(faults) };
    let egress = EgressClient::new(egress).expect("a client");
    Engine::start(EngineParts { store: Arc::new(faulty), egress, config }).await.expect("an engine")
}

pub(crate) fn delivery_id(event: &Published, endpoint: EndpointId) -> DeliveryId {
    DeliveryId::derive(event.id, event.created_at, endpoint)
}

/// Asks again and again until there is an answer, at most [`LIMIT`].
pub(crate) async fn until<T>(look: impl AsyncFn() -> Result<T, String>) -> T {
    let mut last = String::new();
    let found = tokio::time::timeout(LIMIT, async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(state) => last = state,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    found.unwrap_or_else(|_| panic!("it never came to that: {last}"))
}
