//! The program under test as a child process: started, killed, frozen, stopped.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::api::Api;
use crate::postgres::free_port;

/// How long a process may take to become ready; generous, because many start at once on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at a process that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// Lines of a log that are kept.
const LOG_LINES_MAX: usize = 20_000;
/// Lines of a log that an error shows.
const LOG_LINES_SHOWN: usize = 40;

/// How to start the program. The same value starts it again after a kill, on the same port.
#[derive(Debug)]
pub struct Launch {
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    /// Where it is started: no `pombo.toml` or database of the developer's is there.
    directory: Arc<TempDir>,
}

impl Launch {
    /// `pombo serve --dev` on a free port, with this database.
    ///
    /// # Errors
    /// There is no free port or no room for a directory.
    pub fn serve(binary: impl Into<PathBuf>, database: &str) -> io::Result<Self> {
        let mut launch = Self::command(binary, &["serve", "--dev", "--database", database])?;
        let listen = launch.address().to_string();
        launch.arguments.extend(["--listen".to_owned(), listen]);
        Ok(launch)
    }

    /// Any command of the program.
    ///
    /// # Errors
    /// There is no free port or no room for a directory.
    pub fn command(binary: impl Into<PathBuf>, arguments: &[&str]) -> io::Result<Self> {
        Ok(Self {
            binary: binary.into(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: Vec::new(),
            port: free_port()?,
            directory: Arc::new(tempfile::Builder::new().prefix("pombo-process-").tempdir()?),
        })
    }

    /// Sets a variable of the process's environment, such as `POMBO_LEASE__TTL`.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Where it will listen.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A client of it, which works across restarts.
    pub fn api(&self) -> Api {
        Api::new(self.address())
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready in time; the error shows the end of its log.
    pub async fn start(&self) -> io::Result<Process> {
        let mut process = self.spawn()?;
        process.wait_ready(READY_LIMIT).await?;
        Ok(process)
    }

    /// Starts it without waiting for anything.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self) -> io::Result<Process> {
        let mut child = self
            .prepared()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let log = Arc::new(Log::default());
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it was just started");
        let readers = [
            child.stdout.take().map(|stream| tokio::spawn(read(stream, Arc::clone(&log)))),
            child.stderr.take().map(|stream| tokio::spawn(read(stream, Arc::clone(&log)))),
        ];
        let readers = readers.into_iter().flatten().collect();
        Ok(Process { child, pid, api: self.api(), log, readers, _directory: Arc::clone(&self.directory) })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be started or does not end in time.
    pub async fn run(&self, limit: Duration) -> io::Result<Ended> {
        let output = self.prepared().stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(limit, output).await??;
        Ok(Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn prepared(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(&self.arguments).current_dir(self.directory.path());
        for (name, _) in std::env::vars_os() {
            // Settings of the developer's shell are about another Pombo.
            let foreign = |name: &str| name.starts_with("POMBO_") || name == "DATABASE_URL";
            if name.to_str().is_some_and(foreign) {
                command.env_remove(name);
            }
        }
        command.env("NO_COLOR", "1").envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// What a command that ran to its end has left.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

/// A running process; it is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    api: Api,
    log: Arc<Log>,
    readers: Vec<JoinHandle<()>>,
    _directory: Arc<TempDir>,
}

impl Process {
    /// A client of its API.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// What it has logged so far, on both streams.
    pub fn log(&self) -> String {
        self.log.text(usize::MAX)
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.text(lines)
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// It ends, or the time is over.
    pub async fn wait_ready(&mut self, limit: Duration) -> io::Result<()> {
        let since = Instant::now();
        loop {
            if self.api.get("/readyz").await.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                self.read_log_to_the_end().await;
                return Err(self.trouble(&format!("ended with {status} before it was ready")));
            }
            if since.elapsed() > limit {
                return Err(self.trouble(&format!("not ready after {limit:?}")));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// SIGKILL: no destructor, no flush. Returns when the process is gone.
    ///
    /// # Errors
    /// It had ended by itself before.
    pub async fn kill(mut self) -> io::Result<()> {
        self.must_run()?;
        self.child.kill().await
    }

    /// SIGSTOP: it stands still, its sockets stay open.
    ///
    /// # Errors
    /// It has ended.
    pub fn freeze(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT after [`Process::freeze`].
    ///
    /// # Errors
    /// It has ended.
    pub fn thaw(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It has ended before, or does not end in time.
    pub async fn terminate(mut self, limit: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => Err(self.trouble(&format!("still runs {limit:?} after SIGTERM"))),
        }
    }

    /// Waits for an end that comes by itself.
    ///
    /// # Errors
    /// It does not come in time.
    pub async fn wait_for_end(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => {
                self.read_log_to_the_end().await;
                status
            }
            Err(_) => Err(self.trouble(&format!("still runs after {limit:?}"))),
        }
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// It has.
    pub fn must_run(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.trouble(&format!("ended by itself with {status}"))),
        }
    }

    /// The most memory it has had resident so far, in bytes. Linux only.
    ///
    /// # Errors
    /// `/proc` does not tell.
    pub fn peak_resident_bytes(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| io::Error::other("no VmHWM in /proc"))
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // Only while the child has not been waited for is the number surely still its own.
        self.must_run()?;
        kill_process(self.pid, signal)?;
        Ok(())
    }

    async fn read_log_to_the_end(&mut self) {
        for reader in self.readers.drain(..) {
            // A grandchild may hold the stream open; its words are not needed.
            let _ = tokio::time::timeout(Duration::from_secs(2), reader).await;
        }
    }

    fn trouble(&self, what: &str) -> io::Error {
        let log = self.log.text(LOG_LINES_SHOWN);
        io::Error::other(format!("pombo (pid {}) {what}; the end of its log:\n{log}", self.id()))
    }
}

/// The last lines of both streams.
#[derive(Default)]
struct Log(Mutex<std::collections::VecDeque<String>>);

impl Log {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self, last: usize) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = lines.len().saturating_sub(last);
        lines.iter().skip(skipped).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

async fn read(stream: impl AsyncRead + Unpin, log: Arc<Log>) {
    let mut lines = BufReader::new(stream).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        log.push(String::from_utf8_lossy(&line).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::Launch;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> io::Result<Launch> {
        Launch::command("sh", &["-c", script])
    }

    /// The letter of `/proc/<pid>/stat`: T is stopped.
    fn state(id: i32) -> io::Result<String> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        Ok(stat.rsplit(") ").next().unwrap_or_default().chars().take(1).collect())
    }

    #[tokio::test]
    async fn command_sees_its_variables_and_none_of_ours() -> io::Result<()> {
        let launch = shell("echo $POMBO_X$POMBO_TEST_PG_BIN; echo said >&2; exit 3")?.env("POMBO_X", "x");
        let ended = launch.run(SOON).await?;
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(3), "x\n", "said\n"));
        Ok(())
    }

    #[tokio::test]
    async fn frozen_process_stands_until_it_is_thawed_and_ends_when_killed() -> io::Result<()> {
        let mut process = shell("while :; do sleep 0.05; done")?.spawn()?;
        let id = process.id();
        process.freeze()?;
        let stopped = async {
            while state(id).is_ok_and(|state| state != "T") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, stopped).await?;
        process.thaw()?;
        process.must_run()?;
        process.kill().await?;
        assert!(state(id).is_err(), "gone and waited for");
        Ok(())
    }

    #[tokio::test]
    async fn process_that_ends_before_it_is_ready_shows_its_log() -> io::Result<()> {
        let error = shell("echo no such database >&2; exit 1")?.start().await.expect_err("it ends");
        let text = error.to_string();
        assert!(text.contains("exit status: 1") && text.contains("no such database"), "{text}");
        Ok(())
    }
}
