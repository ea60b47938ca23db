//! The proxy's side of the wire: two pumps for each connection, one for each direction.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Counts, Direction, Fault, Faults};

/// The most that one pump holds.
const PIECE: usize = 64 * 1024;

/// Serves connections until it is aborted, which closes them.
pub(super) async fn serve(
    listener: TcpListener,
    server: SocketAddr,
    faults: watch::Receiver<Faults>,
    counts: Arc<Counts>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    counts.connections.fetch_add(1, Ordering::Relaxed);
                    // Dropped, so closed, when refusing.
                    if !faults.borrow().refusing {
                        connections.spawn(connection(client, server, faults.clone(), Arc::clone(&counts)));
                    }
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(
    mut client: TcpStream,
    server: SocketAddr,
    faults: watch::Receiver<Faults>,
    counts: Arc<Counts>,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ended = {
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let pump = |direction| Pump { direction, faults: faults.clone(), counts: &counts, passed: 0 };
        tokio::try_join!(
            pump(Direction::ToServer).run(client_reads, server_writes),
            pump(Direction::ToClient).run(server_reads, client_writes),
        )
    };
    if ended.is_err() {
        // Not earlier: with a linger time of zero, closing throws away what the other side has not read yet.
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

struct Pump<'a> {
    direction: Direction,
    faults: watch::Receiver<Faults>,
    counts: &'a Counts,
    /// Bytes of this connection that have passed.
    passed: u64,
}

/// The connection ends with a reset.
fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl Pump<'_> {
    /// Moves bytes until the direction ends; an error makes the connection end with a reset.
    async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let fault = self.faults.borrow_and_update().of(self.direction);
            let room = match fault {
                Fault::Reset => return Err(reset()),
                Fault::HalfClose => return to.shutdown().await,
                Fault::Blackhole => {
                    self.changed().await?;
                    continue;
                }
                Fault::CutAfter(limit) if self.passed >= limit => return Err(reset()),
                Fault::CutAfter(limit) => usize::try_from(limit - self.passed).unwrap_or(PIECE).min(PIECE),
                Fault::Drip { bytes, .. } => bytes.clamp(1, PIECE),
                Fault::None | Fault::Latency(_) => PIECE,
            };
            // Both branches may be dropped without loss: a read that is dropped has read nothing.
            let length = tokio::select! {
                biased;
                changed = self.changed() => {
                    changed?;
                    continue;
                }
                length = from.read(&mut piece[..room]) => length?,
            };
            if length == 0 {
                return to.shutdown().await;
            }
            if let Fault::Latency(length) | Fault::Drip { every: length, .. } = fault {
                self.pause(length).await?;
            }
            self.write(&mut to, &piece[..length]).await?;
        }
    }

    /// Waits before a piece that has been read goes on; a reset or an end of faults cuts the wait short.
    async fn pause(&mut self, length: Duration) -> io::Result<()> {
        let end = sleep(length);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                changed = self.changed() => {
                    changed?;
                    match self.faults.borrow().of(self.direction) {
                        Fault::Reset => return Err(reset()),
                        Fault::None => return Ok(()),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Hands a piece on; a side that does not read must not keep a reset waiting.
    async fn write(&mut self, to: &mut WriteHalf<'_>, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let written = tokio::select! {
                written = to.write(piece) => written?,
                changed = self.changed() => {
                    changed?;
                    if self.faults.borrow().of(self.direction) == Fault::Reset {
                        return Err(reset());
                    }
                    continue;
                }
            };
            piece = &piece[written..];
            self.passed += written as u64;
            self.counts.bytes(self.direction).fetch_add(written as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for other faults. An error when the proxy is gone, and the connection with it.
    async fn changed(&mut self) -> io::Result<()> {
        self.faults.changed().await.map_err(|_| reset())
    }
}
