//! The Pombo of the story: the same binary, as a child process.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::client::{Http, http};
use crate::failure::{Failure, Outcome};

/// Longest start.
const START_MAX: Duration = Duration::from_secs(10);
/// Longest call.
const CALL_MAX: Duration = Duration::from_secs(5);
/// How much of the child's log is shown when the story fails.
const LOG_TAIL_BYTES: usize = 4000;

/// The child process and a way to talk to it.
pub(super) struct Pombo {
    child: Child,
    http: Http,
    database: PathBuf,
    log: PathBuf,
    address: String,
}

impl Pombo {
    /// Starts `pombo serve --dev` on a free loopback port and waits until it is ready.
    pub(super) async fn start(database: &Path, directory: &Path) -> Outcome<Self> {
        let address = free_address()?;
        let log = directory.join("pombo.log");
        let child = spawn(database, &address, &log)?;
        let pombo = Self { child, http: http()?, database: database.to_owned(), log, address };
        pombo.ready().await?;
        Ok(pombo)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// SIGKILL, and the end of the process awaited.
    pub(super) async fn kill(&mut self) -> Outcome {
        self.child.kill().await.context("cannot kill the child").map_err(Failure::Failed)
    }

    /// The same again, on the same file and port.
    pub(super) async fn restart(&mut self) -> Outcome {
        self.child = spawn(&self.database, &self.address, &self.log)?;
        self.ready().await
    }

    /// An orderly end: SIGTERM, then waited for.
    pub(super) async fn stop(&mut self) -> Outcome {
        let Some(pid) = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) else {
            return Ok(());
        };
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot end the child")
            .map_err(Failure::Failed)?;
        if tokio::time::timeout(START_MAX, self.child.wait()).await.is_err() {
            return self.kill().await;
        }
        Ok(())
    }

    pub(super) async fn get(&self, path: &str) -> Outcome<Value> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.call(Method::POST, path, body.to_string().into()).await
    }

    /// `pombo check` on the database, beside the running server: whether it is clean, and what it said.
    pub(super) async fn check(&self) -> Outcome<(bool, String)> {
        let output = command()?
            .args(["check", "--database"])
            .arg(&self.database)
            .stdin(Stdio::null())
            .output()
            .await
            .context("cannot run `pombo check`")
            .map_err(Failure::Failed)?;
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).trim().to_owned());
        Ok((output.status.success(), said.join("\n")))
    }

    /// The end of what the child logged.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_TAIL_BYTES);
        let start = (start..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(log.len());
        format!("The child's log ends with:\n{}", &log[start..])
    }

    async fn ready(&self) -> Outcome {
        let end = Instant::now() + START_MAX;
        while self.raw(Method::GET, "/readyz", Bytes::new()).await.is_err() {
            if Instant::now() > end {
                return Err(Failure::Failed(anyhow::anyhow!(
                    "Pombo did not start within 10 s\n{}",
                    self.log_tail()
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Outcome<Value> {
        let answer = self.raw(method, path, body).await?;
        Ok(serde_json::from_slice(&answer).map_err(anyhow::Error::new)?)
    }

    async fn raw(&self, method: Method, path: &str, body: Bytes) -> Outcome<Bytes> {
        let exchange = async {
            let request = Request::builder()
                .method(method)
                .uri(format!("{}{path}", self.url()))
                .header("content-type", "application/json")
                .body(Full::new(body))?;
            let response = self.http.request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            if !status.is_success() {
                bail!("{path} answered {status}: {}", String::from_utf8_lossy(&body));
            }
            Ok(body)
        };
        match tokio::time::timeout(CALL_MAX, exchange).await {
            Ok(result) => result.map_err(Failure::Failed),
            Err(_) => Err(Failure::Failed(anyhow::anyhow!("{path} did not answer within 5 s"))),
        }
    }
}

fn free_address() -> Outcome<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = listener.context("no free loopback port").map_err(Failure::Failed)?;
    Ok(address.to_string())
}

fn command() -> Outcome<Command> {
    let binary = std::env::current_exe().context("cannot find the pombo binary").map_err(Failure::Failed)?;
    let mut command = Command::new(binary);
    // The story must not depend on what this shell has set.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POMBO_") || name == "DATABASE_URL" {
            command.env_remove(name);
        }
    }
    Ok(command)
}

fn spawn(database: &Path, address: &str, log: &Path) -> Outcome<Child> {
    let file = || std::fs::OpenOptions::new().create(true).append(true).open(log);
    let (stdout, stderr) = (file(), file());
    let mut command = command()?;
    command
        .args(["serve", "--dev", "--listen", address, "--database"])
        .arg(database)
        .current_dir(database.parent().unwrap_or(Path::new(".")))
        .stdin(Stdio::null())
        .stdout(stdout.map_err(anyhow::Error::new)?)
        .stderr(stderr.map_err(anyhow::Error::new)?)
        .kill_on_drop(true);
    command.spawn().context("cannot start Pombo").map_err(Failure::Failed)
}
