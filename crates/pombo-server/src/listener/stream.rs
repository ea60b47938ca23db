//! A connection's bytes, watched.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::clock::Clock;

/// How long, and how much, a peer that is still sending is listened to after the answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Tells the clock when bytes arrive, and closes so that an answer to an unread body is not lost.
///
/// A socket that is closed with unread bytes sends a reset, and the peer's kernel may throw away the answer
/// (413, 401 …) that lies before it. So the writing side is closed first, and what the peer is still sending
/// is read and dropped for a moment.
pub(crate) struct WatchedStream {
    inner: TcpStream,
    clock: Arc<Clock>,
    linger: Option<(Pin<Box<Sleep>>, usize)>,
}

impl WatchedStream {
    pub(crate) fn new(inner: TcpStream, clock: Arc<Clock>) -> Self {
        Self { inner, clock, linger: None }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (timer, dropped) = self.linger.get_or_insert_with(|| (Box::pin(sleep(LINGER)), 0));
        let mut scratch = [0; 8 * 1024];
        loop {
            if timer.as_mut().poll(cx).is_ready() || *dropped > LINGER_BYTES_MAX {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *dropped += buffer.filled().len(),
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.clock.saw_bytes();
        }
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        }
        if self.clock.has_unread() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
