//! A TCP server that answers with any bytes at all, for answers that no HTTP library would send.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::changes::{Changes, TimedOut};

/// The most that is read of one request's head.
const HEAD_BYTES_MAX: usize = 256 * 1024;

/// What a raw server does on a connection, one step after the other; after the last it closes.
#[derive(Debug, Clone)]
pub enum Step {
    /// Read up to the empty line after a request's head.
    ReadHead,
    /// Send these bytes.
    Write(Bytes),
    /// Send these bytes one at a time, this far apart.
    Drip(Bytes, Duration),
    /// Do nothing for this long.
    Pause(Duration),
    /// Close the sending side and keep reading until the other side closes.
    HalfClose,
    /// Close with a reset instead of an orderly end.
    Reset,
    /// Do nothing until the other side closes.
    Hold,
}

impl Step {
    /// Sends these bytes.
    pub fn write(bytes: impl AsRef<[u8]>) -> Self {
        Self::Write(Bytes::copy_from_slice(bytes.as_ref()))
    }
}

/// A running raw server; it stops when dropped.
#[derive(Debug)]
pub struct RawServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    changes: Changes,
}

#[derive(Debug, Default)]
struct Log {
    connections: usize,
    open: usize,
    heads: Vec<Bytes>,
}

impl RawServer {
    /// Starts a server that takes these steps on every connection.
    ///
    /// # Errors
    /// No port of 127.0.0.1 can be bound.
    pub async fn start(steps: impl Into<Vec<Step>>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { log: Mutex::default(), changes: Changes::new() });
        let server = tokio::spawn(serve(listener, steps.into().into(), Arc::clone(&shared)));
        Ok(Self { address, shared, server })
    }

    /// A server that reads a request, answers with exactly these bytes and closes.
    ///
    /// # Errors
    /// No port of 127.0.0.1 can be bound.
    pub async fn answering(bytes: impl AsRef<[u8]>) -> io::Result<Self> {
        Self::start([Step::ReadHead, Step::write(bytes)]).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path that begins with `/`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.log().connections
    }

    /// What [`Step::ReadHead`] has read so far, with what of the body came along.
    pub fn heads(&self) -> Vec<Bytes> {
        self.shared.log().heads.clone()
    }

    /// Waits until exactly `count` connections are open.
    ///
    /// # Errors
    /// That is not so within `limit`.
    pub async fn wait_for_open(&self, count: usize, limit: Duration) -> Result<(), TimedOut> {
        let found =
            self.shared.changes.wait_for(limit, || (self.shared.log().open == count).then_some(())).await;
        found.ok_or_else(|| TimedOut { waited: limit, state: format!("{:?}", self.shared.log()) })
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log());
        self.changes.announce();
    }
}

async fn serve(listener: TcpListener, steps: Arc<[Step]>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    shared.update(|log| {
                        log.connections += 1;
                        log.open += 1;
                    });
                    let (steps, shared) = (Arc::clone(&steps), Arc::clone(&shared));
                    connections.spawn(async move {
                        // The other side may leave in the middle of any step.
                        let _ = take(&steps, stream, &shared).await;
                        shared.update(|log| log.open -= 1);
                    });
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn take(steps: &[Step], mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for step in steps {
        match step {
            Step::ReadHead => {
                let head = read_head(&mut stream).await?;
                shared.update(|log| log.heads.push(head));
            }
            Step::Write(bytes) => stream.write_all(bytes).await?,
            Step::Drip(bytes, pace) => {
                for byte in bytes {
                    stream.write_all(std::slice::from_ref(byte)).await?;
                    tokio::time::sleep(*pace).await;
                }
            }
            Step::Pause(length) => tokio::time::sleep(*length).await,
            Step::HalfClose => {
                stream.shutdown().await?;
                read_to_end(&mut stream).await?;
            }
            Step::Reset => {
                // With a linger time of zero, closing sends a reset.
                return stream.set_zero_linger();
            }
            Step::Hold => read_to_end(&mut stream).await?,
        }
    }
    stream.shutdown().await
}

async fn read_head(stream: &mut TcpStream) -> io::Result<Bytes> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the head of the request has no end"));
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head.into())
}

async fn read_to_end(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::{RawServer, Step};

    const SOON: Duration = Duration::from_secs(10);

    async fn ask(server: &RawServer) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(server.address()).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await?;
        let mut answer = Vec::new();
        timeout(SOON, stream.read_to_end(&mut answer)).await??;
        Ok(answer)
    }

    #[tokio::test]
    async fn answers_exactly_the_bytes_and_keeps_the_request() -> io::Result<()> {
        let server = RawServer::answering(b"HTTP/9.9 \xff\xfe\n\n").await?;
        assert_eq!(ask(&server).await?, b"HTTP/9.9 \xff\xfe\n\n");
        assert_eq!(server.heads(), [Bytes::from_static(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")]);
        assert_eq!(server.connections(), 1);
        Ok(())
    }

    #[tokio::test]
    async fn reset_is_no_orderly_end() -> io::Result<()> {
        let server = RawServer::start([Step::ReadHead, Step::write("HTTP/1.1 2"), Step::Reset]).await?;
        let error = ask(&server).await.expect_err("the connection is reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        Ok(())
    }

    #[tokio::test]
    async fn dripped_bytes_take_their_time() -> io::Result<()> {
        let pace = Duration::from_millis(20);
        let server =
            RawServer::start([Step::ReadHead, Step::Drip(Bytes::from_static(b"abcde"), pace)]).await?;
        let since = Instant::now();
        assert_eq!(ask(&server).await?, b"abcde");
        assert!(since.elapsed() >= pace * 4, "{:?}", since.elapsed());
        Ok(())
    }

    #[tokio::test]
    async fn held_connection_ends_when_the_other_side_closes() -> io::Result<()> {
        let server = RawServer::start([Step::Hold]).await?;
        let stream = TcpStream::connect(server.address()).await?;
        server.wait_for_open(1, SOON).await.expect("the connection is accepted");
        drop(stream);
        server.wait_for_open(0, SOON).await.expect("the hang-up is seen");
        Ok(())
    }

    #[tokio::test]
    async fn half_closed_connection_still_reads() -> io::Result<()> {
        let server = RawServer::start([Step::write("bye"), Step::HalfClose]).await?;
        let mut stream = TcpStream::connect(server.address()).await?;
        let mut answer = Vec::new();
        timeout(SOON, stream.read_to_end(&mut answer)).await??;
        assert_eq!(answer, b"bye");
        stream.write_all(b"still here").await?;
        server.wait_for_open(1, SOON).await.expect("only one side is closed");
        drop(stream);
        server.wait_for_open(0, SOON).await.expect("now both are");
        Ok(())
    }
}
