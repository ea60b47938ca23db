//! The life of a serving process: start in order, run, stop in order (docs/protocol.md S8).

use std::sync::Arc;

use anyhow::Context as _;
use pombo_engine::{Engine, EngineError, EngineParts};
use pombo_server::{AppState, ServeLimits, Served, ServerConfig};
use pombo_store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::Settings;
use crate::database::Database;
use crate::failure::{Failure, Outcome};
use crate::master_key::MasterKey;
use crate::{output, wire};

/// Open files asked for: connections in, connections out, database, and room.
const OPEN_FILES: u64 = 65_536;
/// Below this many, connections may be refused under load.
const OPEN_FILES_MIN: u64 = 8192;

/// Serves until it is told to stop. Startup errors come back before anything runs.
pub(crate) async fn serve(settings: Settings, database: Database, is_dev: bool) -> Outcome {
    tracing::info!("Using {}", database.announcement());
    raise_open_files();
    let mut signals = Signals::catch()?;
    let engine_config = wire::engine_config(&settings);
    engine_config.check().map_err(|error| Failure::failed(error.to_string()))?;
    let key = MasterKey::find(&database.url, settings.master_key_file.as_deref(), is_dev)?;
    if key.is_public() {
        tracing::warn!("--dev without POMBO_MASTER_KEY: secrets are sealed with a key that everyone knows");
    }
    // Before the database: a port that is taken must not cost a session.
    let listener = listen(&settings).await?;
    let opening = wire::open_and_migrate(&database, &key, &settings);
    let (store, egress) = tokio::try_join!(opening, wire::egress(&settings, is_dev))?;
    let described = store.describe().await.map_err(|error| database.failure(error))?;
    let parts = EngineParts { store: Arc::clone(&store), egress, config: engine_config };
    let engine = Engine::start(parts).await.map_err(|error| match error {
        EngineError::Config(error) => Failure::failed(error.to_string()),
        EngineError::Store(error) => database.failure(error),
    })?;
    let door = match start_serving(listener, &engine, &store, &database, is_dev).await {
        Ok(door) => door,
        Err(failure) => {
            engine.stop(settings.grace).await;
            return Err(failure);
        }
    };
    tracing::info!("Ready on {described}, listening on http://{}", door.address);
    run(engine, door, &mut signals, &settings).await
}

async fn listen(settings: &Settings) -> Outcome<TcpListener> {
    TcpListener::bind(settings.listen.addresses.as_slice()).await.map_err(|error| {
        let text = &settings.listen.text;
        Failure::Failed(anyhow::anyhow!(
            "cannot listen on {text} ({error}): name another address with --listen"
        ))
    })
}

/// The API while it is served.
struct Door {
    address: std::net::SocketAddr,
    close: oneshot::Sender<()>,
    served: JoinHandle<Served>,
}

async fn start_serving(
    listener: TcpListener,
    engine: &Engine,
    store: &Arc<dyn Store>,
    database: &Database,
    is_dev: bool,
) -> Outcome<Door> {
    let handle = engine.handle();
    if !is_dev {
        let key = pombo_server::bootstrap(store.as_ref(), handle.now(), &mut rand::rng()).await;
        if let Some(key) = key.map_err(|error| database.failure(error))? {
            // Not in the log: logs are kept and shipped. This is the one time that it is shown.
            output::note(&format!("bootstrap admin key: {}", key.expose()));
        }
    }
    let address = listener.local_addr().context("the socket has no address")?;
    let has_api = handle.config().roles.api;
    let state = AppState::new(handle, ServerConfig { dev: is_dev, ..ServerConfig::default() });
    let router = if has_api { pombo_server::router(state) } else { pombo_server::health_router(state) };
    let (close, closed) = oneshot::channel();
    let shutdown = async {
        // A sender that is dropped means the same.
        let _ = closed.await;
    };
    let serving = pombo_server::serve(listener, router, ServeLimits::default(), shutdown);
    Ok(Door { address, close, served: tokio::spawn(serving) })
}

async fn run(engine: Engine, mut door: Door, signals: &mut Signals, settings: &Settings) -> Outcome {
    let handle = engine.handle();
    let reason = tokio::select! {
        name = signals.next() => Ok(name),
        () = handle.draining() => Err("the engine stopped by itself; the log says why"),
        ended = &mut door.served => {
            tracing::error!("The server's loop ended: {ended:?}");
            Err("the server stopped by itself; the log says why")
        }
    };
    if let Ok(name) = reason {
        tracing::info!("{name}: stopping; attempts in flight are finished first. Once more stops at once");
    }
    let orderly = stop(engine, door, settings);
    tokio::select! {
        () = orderly => {}
        name = signals.next() => {
            tracing::warn!("{name} again: stopping at once; whoever runs next takes over");
            return Err(Failure::Told);
        }
    }
    tracing::info!("Stopped");
    reason.map(drop).map_err(Failure::failed)
}

/// The door stays open while the engine drains, so that readiness can be seen to fail; it takes no events then.
async fn stop(engine: Engine, door: Door, settings: &Settings) {
    engine.stop(settings.grace).await;
    // Whether the loop still listens or has ended by itself, it ends now.
    let _ = door.close.send(());
    if !door.served.is_finished()
        && let Err(error) = door.served.await
    {
        tracing::error!("The server's loop failed: {error}");
    }
}

/// What asks this process to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn catch() -> Outcome<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
        Ok(Self { interrupt, terminate })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Every connection is a file, and the usual soft limit of 1024 is met early.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return };
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    let now = if raised.is_ok() { wanted } else { current };
    if now < OPEN_FILES_MIN {
        tracing::warn!(
            "This process may open only {now} files; raise the limit (ulimit -n) for many connections"
        );
    }
}
