//! The Pombo that is measured: `pombo serve` in a child process.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Uri;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Child;

use super::connection::Connection;
use super::messages::Layout;
use super::receiver;
use super::scratch::Scratch;
use super::worker::this_program;

/// Longest start, migrations included.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest orderly stop: attempts in flight may take their whole deadline.
const STOP_MAX: Duration = Duration::from_secs(40);
/// Between two looks whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Attempts in flight to one endpoint.
const CONCURRENCY: u16 = 32;
/// How much of its log is shown when it fails.
const LOG_TAIL_CHARS: usize = 2000;

/// A running server. Killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts one on the database, and waits until it is ready.
    pub(super) async fn start(scratch: &Scratch) -> Result<Self> {
        let address = free_address()?;
        let log = scratch.directory().join(format!("serve-{}.log", address.port()));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let child = this_program()?
            .args(["serve", "--dev", "--listen", &address.to_string(), "--database"])
            .arg(scratch.url())
            .current_dir(scratch.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file.context("cannot write the server's log")?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start `pombo serve`")?;
        let mut server = Self { child, address, log };
        server.ready().await?;
        Ok(server)
    }

    async fn ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        let path = Uri::from_static("/readyz");
        while begin.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait().context("cannot watch the server")? {
                bail!("`pombo serve` ended at once ({status})\n{}", self.log_tail());
            }
            if let Ok(mut connection) = Connection::open(self.address).await
                && let Ok((status, _)) = connection.get(&path).await
                && status.is_success()
            {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!("`pombo serve` was not ready within {} s\n{}", START_MAX.as_secs(), self.log_tail())
    }

    /// Where its API is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Makes the endpoints of a layout.
    pub(super) async fn make_endpoints(&self, layout: Layout, receiver: SocketAddr) -> Result<()> {
        let mut connection = Connection::open(self.address).await?;
        let path = Uri::from_static("/v1/endpoints");
        for number in 0..layout.endpoints() {
            let request = json!({
                "tenant": Layout::tenant(number / layout.endpoints_each),
                "url": format!("http://{receiver}{}{number}", receiver::PATH),
                "maxConcurrency": CONCURRENCY,
            });
            let (status, answer) = connection.post(&path, request.to_string().into()).await?;
            if !status.is_success() {
                bail!("an endpoint could not be made: {status} {}", String::from_utf8_lossy(&answer));
            }
        }
        Ok(())
    }

    /// Live deliveries that the server itself counts as not yet settled, by asking for one of each kind.
    pub(super) async fn has_live_deliveries(&self) -> Result<bool> {
        let mut connection = Connection::open(self.address).await?;
        for status in ["pending", "sending", "retrying", "paused"] {
            let path: Uri = format!("/v1/deliveries?status={status}&limit=1").parse().expect("a path");
            let (code, answer) = connection.get(&path).await?;
            if !code.is_success() {
                bail!("deliveries cannot be listed: {code} {}", String::from_utf8_lossy(&answer));
            }
            let page: Value = serde_json::from_slice(&answer).context("not a page of deliveries")?;
            if page["data"].as_array().is_some_and(|rows| !rows.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// An orderly end.
    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid as i32)) {
            kill_process(pid, Signal::TERM).context("cannot stop the server")?;
            if tokio::time::timeout(STOP_MAX, self.child.wait()).await.is_err() {
                bail!("the server did not stop within {} s\n{}", STOP_MAX.as_secs(), self.log_tail());
            }
        }
        Ok(())
    }

    /// The end of its log.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let chars = log.chars().count();
        let tail: String = log.chars().skip(chars.saturating_sub(LOG_TAIL_CHARS)).collect();
        format!("its log ends with:\n{tail}")
    }
}

fn free_address() -> Result<SocketAddr> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.context("no loopback port is free")
}
