//! Bodies of requests and answers, watched.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::clock::{Clock, Phase};

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyFault {
    /// It took too long.
    #[error("the body did not arrive in time")]
    Timeout,
    /// The connection broke, or the framing is wrong.
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
}

/// The body of a request, with a deadline of its own.
pub(crate) struct RequestBody {
    inner: Incoming,
    clock: Arc<Clock>,
    deadline: Instant,
    /// Made by the first wait: a body that is here with its head, as nearly all are, costs no timer.
    timer: Option<Pin<Box<Sleep>>>,
    is_read: bool,
}

impl RequestBody {
    pub(crate) fn new(inner: Incoming, clock: Arc<Clock>, limit: Duration) -> Self {
        let is_read = inner.is_end_stream();
        Self { inner, clock, deadline: Instant::now() + limit, timer: None, is_read }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            self.is_read = frame.is_none() || self.inner.is_end_stream();
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyFault::Broken)));
        }
        let deadline = self.deadline;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyFault::Timeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_read {
            self.clock.left_unread();
        }
    }
}

/// The body of an answer; when it is dropped, the answer is in the connection's buffer and the pause until the
/// next request begins.
pub(crate) struct ResponseBody {
    inner: Body,
    clock: Arc<Clock>,
}

impl ResponseBody {
    pub(crate) fn new(inner: Body, clock: Arc<Clock>) -> Self {
        Self { inner, clock }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.clock.enter(Phase::Idle);
    }
}
