//! A PostgreSQL server of the test's own, for tests that crash one: the server that all tests share must live.
//!
//! It ends with the test, however that ends: the server's parent is a small shell that waits for its standard input
//! to close, which the system does for a process that dies.

use std::env;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

/// The variable in which `cargo xtask test` hands the directory of the server's programs to the tests.
pub const BIN_VARIABLE: &str = "POMBO_TEST_PG_BIN";

/// How long a start may take, recovery after a crash included.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a crash may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks at a server that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const DATA: &str = "data";
const LOG: &str = "log";

/// Tests ask after a crash what is still there, so the disk counts, whatever the packager chose.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "full_page_writes=on",
    "max_connections=200",
    "shared_buffers=64MB",
    "log_min_messages=warning",
];

/// Runs the server (its arguments) until the input says `keep` or ends, then stops it as a power cut would:
/// SIGQUIT is the immediate mode of `pg_ctl stop`. Without `keep`, its files go too.
const GUARD: &str = r#"
trap '' INT TERM HUP
data=$1 log=$2; shift 2
"$@" >>"$log" 2>&1 </dev/null &
server=$!
read -r order
kill -QUIT "$server" 2>/dev/null
wait "$server"
[ "$order" = keep ] || rm -rf "$data"
"#;

/// A PostgreSQL server that a test may crash and start again. It is gone with this value.
#[derive(Debug)]
pub struct PostgresServer {
    directory: TempDir,
    programs: PathBuf,
    owner: Option<Owner>,
    port: u16,
    guard: Option<Guard>,
}

#[derive(Debug)]
struct Guard {
    shell: Child,
    orders: ChildStdin,
}

/// The user that runs the server when we are root, whom PostgreSQL refuses.
#[derive(Debug, Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

/// Who can reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Everyone on this machine, over TCP.
    Tcp,
    /// Only who knows the socket in its directory.
    SocketOnly,
}

impl PostgresServer {
    /// Makes and starts a server.
    ///
    /// # Errors
    /// It does not start; the error shows its log.
    ///
    /// # Panics
    /// `cargo xtask test` has not said where the programs are: a test that cannot run must not look as if it had
    /// passed.
    pub async fn start() -> io::Result<Self> {
        let Some(programs) = env::var_os(BIN_VARIABLE).map(PathBuf::from) else {
            panic!(
                "{BIN_VARIABLE} is not set, so there is no PostgreSQL to start: run `cargo xtask test`, or \
                 `cargo xtask postgres -- cargo test …`"
            );
        };
        let owner =
            if rustix::process::geteuid().is_root() { Some(Owner::unprivileged().await?) } else { None };
        let directory = new_directory(owner)?;
        let mut server = Self { directory, programs, owner, port: free_port()?, guard: None };
        server.make().await?;
        server.run(Reach::Tcp).await?;
        Ok(server)
    }

    /// Where it listens; the same after each start.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect to its database `postgres` over TCP.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new()
            .host(&Ipv4Addr::LOCALHOST.to_string())
            .port(self.port)
            .username("pombo")
            .database("postgres")
    }

    /// The same as a URL.
    pub fn url(&self) -> String {
        self.options().to_url_lossy().into()
    }

    /// The same by the socket in its directory, which also works while it is hidden.
    pub fn socket_options(&self) -> PgConnectOptions {
        self.options().socket(self.directory.path())
    }

    /// Stops it as a power cut would: no checkpoint, no goodbye, and what was committed asynchronously in the last
    /// moments is gone.
    ///
    /// # Errors
    /// It does not stop in time.
    pub async fn crash(&mut self) -> io::Result<()> {
        let Some(Guard { mut shell, mut orders }) = self.guard.take() else { return Ok(()) };
        orders.write_all(b"keep\n").await?;
        drop(orders);
        tokio::time::timeout(STOP_LIMIT, shell.wait()).await??;
        Ok(())
    }

    /// Starts it again after [`PostgresServer::crash`], on the same port.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.crash().await?;
        self.run(Reach::Tcp).await
    }

    /// Starts it again so that only the test reaches it ([`PostgresServer::socket_options`]): a look at what a crash
    /// has left, before anyone can change it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_hidden(&mut self) -> io::Result<()> {
        self.crash().await?;
        self.run(Reach::SocketOnly).await
    }

    async fn make(&self) -> io::Result<()> {
        let mut initdb = self.program("initdb");
        initdb.args(["--username=pombo", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        let output = initdb.arg("--pgdata").arg(self.directory.path().join(DATA)).output().await?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("initdb failed: {}", String::from_utf8_lossy(&output.stderr))))
    }

    async fn run(&mut self, reach: Reach) -> io::Result<()> {
        let path = self.directory.path();
        let mut shell = self.command("sh");
        shell.args(["-c", GUARD, "sh"]).arg(path.join(DATA)).arg(path.join(LOG));
        shell.arg(self.programs.join("postgres")).arg("-D").arg(path.join(DATA)).arg("-k").arg(path);
        shell.args(["-p", &self.port.to_string()]);
        shell.args(["-h", if reach == Reach::Tcp { "127.0.0.1" } else { "" }]);
        for setting in SETTINGS {
            shell.args(["-c", setting]);
        }
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let orders = shell.stdin.take().expect("the input was piped");
        self.guard = Some(Guard { shell, orders });
        self.wait_until_it_answers(reach).await
    }

    async fn wait_until_it_answers(&self, reach: Reach) -> io::Result<()> {
        let options = if reach == Reach::Tcp { self.options() } else { self.socket_options() };
        let since = Instant::now();
        loop {
            match answers(&options).await {
                Ok(()) => return Ok(()),
                Err(error) if since.elapsed() > START_LIMIT => {
                    let log = fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default();
                    return Err(io::Error::other(format!("no PostgreSQL: {error}; its log says:\n{log}")));
                }
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    fn program(&self, name: &str) -> Command {
        self.command(self.programs.join(name))
    }

    /// A command run as the owner of the files.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        // The owner may not enter the directory we were started in, and `initdb` wants a time zone it can name.
        command.current_dir(self.directory.path()).env("TZ", "UTC");
        for (name, _) in env::vars_os() {
            // PGPORT, PGOPTIONS and the like of the developer's shell are about other servers.
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if let Some(owner) = self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        command
    }
}

impl Drop for PostgresServer {
    /// Lets the shell stop the server and remove its files, and waits for that, so that the directory can go.
    fn drop(&mut self) {
        let Some(Guard { mut shell, orders }) = self.guard.take() else { return };
        drop(orders);
        let since = Instant::now();
        while since.elapsed() < STOP_LIMIT && matches!(shell.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Owner {
    /// The user of the distribution's PostgreSQL, or the one that owns nothing.
    async fn unprivileged() -> io::Result<Self> {
        for name in ["postgres", "nobody"] {
            if let (Some(uid), Some(gid)) = (number("-u", name).await, number("-g", name).await) {
                return Ok(Self { uid, gid });
            }
        }
        Err(io::Error::other("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`"))
    }
}

async fn number(flag: &str, user: &str) -> Option<u32> {
    let output = Command::new("id").args([flag, user]).output().await.ok()?;
    str::from_utf8(&output.stdout).ok()?.trim().parse().ok()
}

async fn answers(options: &PgConnectOptions) -> sqlx::Result<()> {
    let mut connection: PgConnection = options.connect().await?;
    connection.execute(AssertSqlSafe("SELECT 1".to_owned())).await?;
    connection.close().await
}

/// On a disk (`/tmp` may be memory, and `fsync` counts here), with a short path (that of a unix socket has about
/// 100 bytes), and outside the checkout, which the server's user may not be able to enter.
fn new_directory(owner: Option<Owner>) -> io::Result<TempDir> {
    let parent = Path::new("/var/tmp");
    let parent = if parent.is_dir() { parent.to_path_buf() } else { env::temp_dir() };
    let directory = tempfile::Builder::new().prefix("pombo-crash-").tempdir_in(parent)?;
    if let Some(owner) = owner {
        chown(directory.path(), Some(owner.uid), Some(owner.gid))?;
    }
    Ok(directory)
}

/// A port that nobody holds and that no outgoing connection is given (those begin at 32768), so that it is still
/// free after a crash.
pub(crate) fn free_port() -> io::Result<u16> {
    for _ in 0..64 {
        let port = 12_000 + (uuid::Uuid::new_v4().as_u128() % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::other("found no free port on 127.0.0.1 in 64 tries"))
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions, Connection, Executor, Row};

    use super::PostgresServer;

    #[tokio::test]
    async fn crashed_server_keeps_what_was_committed_and_comes_back_on_its_port()
    -> Result<(), Box<dyn std::error::Error>> {
        let mut server = PostgresServer::start().await?;
        let url = server.url();
        let mut connection = server.options().connect().await?;
        connection.execute("CREATE TABLE kept (id bigint)").await?;
        connection.execute("INSERT INTO kept VALUES (1)").await?;
        server.crash().await?;
        assert!(connection.execute("SELECT 1").await.is_err(), "the connection died with the server");

        server.start_hidden().await?;
        assert!(server.options().connect().await.is_err(), "hidden: nobody reaches it over TCP");
        let mut hidden = server.socket_options().connect().await?;
        assert_eq!(hidden.fetch_one("SELECT count(*) FROM kept").await?.try_get::<i64, _>(0)?, 1);

        server.start_again().await?;
        assert_eq!(server.url(), url);
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        assert_eq!(connection.fetch_one("SELECT count(*) FROM kept").await?.try_get::<i64, _>(0)?, 1);
        let directory = server.directory.path().to_path_buf();
        drop(server);
        assert!(!directory.exists(), "nothing is left");
        Ok(())
    }
}
