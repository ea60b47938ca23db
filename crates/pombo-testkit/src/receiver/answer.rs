//! What a receiver answers.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame};
use tokio::time::{Interval, interval};

use super::Hit;

/// Bytes of a chunk where the answer has no pace of its own.
const CHUNK: usize = 64 * 1024;
static FILLER: [u8; CHUNK] = [b'x'; CHUNK];

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// How long to wait before the first byte.
    pub(super) delay: Duration,
    /// What then happens.
    pub(super) deed: Deed,
}

#[derive(Debug, Clone)]
pub(super) enum Deed {
    Respond(Reply),
    /// Keep the connection open and send nothing.
    Never,
    /// Close the connection without a byte.
    Close,
}

#[derive(Debug, Clone)]
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// Bytes of filler after the body.
    filler: u64,
    /// One byte at a time, this far apart.
    pace: Option<Duration>,
    /// Break the connection off after the last byte, as if there were more.
    cut: bool,
}

impl Answer {
    /// An empty answer.
    ///
    /// # Panics
    /// The status is not between 100 and 999.
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status has three digits");
        let reply = Reply {
            status,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            filler: 0,
            pace: None,
            cut: false,
        };
        Self { delay: Duration::ZERO, deed: Deed::Respond(reply) }
    }

    /// A redirection to `location`.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::status(status).header("location", location)
    }

    /// No answer at all: the connection stays open until the other side closes it.
    pub fn never() -> Self {
        Self { delay: Duration::ZERO, deed: Deed::Never }
    }

    /// The connection is closed instead of an answer.
    pub fn closed() -> Self {
        Self { delay: Duration::ZERO, deed: Deed::Close }
    }

    /// Waits before the first byte (or before closing).
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds a header; bytes above 0x7f are sent as they are.
    ///
    /// # Panics
    /// The name or the value cannot stand in a header.
    #[must_use]
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let name: HeaderName = name.parse().expect("the test gives a header's name");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("the test gives a header's value");
        self.with(|reply| {
            reply.headers.append(name, value);
        })
    }

    /// Sets the body.
    #[must_use]
    pub fn body(self, body: impl Into<Bytes>) -> Self {
        self.with(|reply| reply.body = body.into())
    }

    /// Lets `bytes` bytes of filler follow the body; they are made on the way, so this may be gigabytes.
    #[must_use]
    pub fn filled(self, bytes: u64) -> Self {
        self.with(|reply| reply.filler = bytes)
    }

    /// Sends the body one byte at a time, `pace` apart, after the head has gone out at once.
    /// With `filled(u64::MAX)` that lasts for ever.
    #[must_use]
    pub fn dripping(self, pace: Duration) -> Self {
        self.with(|reply| reply.pace = Some(pace))
    }

    /// Breaks the connection off after the body, as if more were to come.
    #[must_use]
    pub fn cut(self) -> Self {
        self.with(|reply| reply.cut = true)
    }

    fn with(mut self, change: impl FnOnce(&mut Reply)) -> Self {
        match &mut self.deed {
            Deed::Respond(reply) => change(reply),
            Deed::Never | Deed::Close => panic!("only an answer that is sent has headers and a body"),
        }
        self
    }
}

impl Reply {
    pub(super) fn into_response(self) -> Response<Content> {
        // Otherwise hyper would announce nothing to come, and nothing could be cut.
        let whole = self.filler == 0 && self.pace.is_none() && !self.cut;
        let content = Content {
            body: self.body,
            filler: self.filler,
            pace: self.pace.map(interval),
            cut: self.cut,
            paused: false,
            whole,
        };
        let mut response = Response::new(content);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// The body of an answer on its way out.
#[derive(Debug)]
pub(super) struct Content {
    body: Bytes,
    filler: u64,
    pace: Option<Interval>,
    cut: bool,
    /// The pause before the cut has been made.
    paused: bool,
    /// Its length is known and announced.
    whole: bool,
}

/// The answer's script breaks it off.
#[derive(Debug, thiserror::Error)]
#[error("the script cuts the answer here")]
pub(super) struct Cut;

impl Body for Content {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.body.is_empty() && self.filler == 0 {
            if self.cut && !std::mem::replace(&mut self.paused, true) {
                // hyper flushes when the body has nothing ready, and throws unflushed bytes away on an error.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(self.cut.then_some(Err(Cut)));
        }
        let mut size = CHUNK;
        if let Some(pace) = &mut self.pace {
            if pace.poll_tick(context).is_pending() {
                return Poll::Pending;
            }
            size = 1;
        }
        let chunk = if self.body.is_empty() {
            let size = size.min(usize::try_from(self.filler).unwrap_or(usize::MAX));
            self.filler -= size as u64;
            Bytes::from_static(&FILLER).slice(..size)
        } else {
            let size = size.min(self.body.len());
            self.body.split_to(size)
        };
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_empty() && self.filler == 0 && !self.cut
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        if self.whole {
            hyper::body::SizeHint::with_exact(self.body.len() as u64)
        } else {
            hyper::body::SizeHint::default()
        }
    }
}

/// Which answer to give when.
pub struct Script(Box<dyn FnMut(&Hit) -> Answer + Send>);

impl Script {
    /// The same answer every time.
    pub fn always(answer: Answer) -> Self {
        Self(Box::new(move |_| answer.clone()))
    }

    /// One answer after the other; the last one for ever.
    ///
    /// # Panics
    /// There is no answer.
    pub fn sequence(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mut answers = answers.into_iter().collect::<Vec<_>>().into_iter();
        let mut last = answers.next().expect("a script has at least one answer");
        let mut first = true;
        Self(Box::new(move |_| {
            if !std::mem::take(&mut first)
                && let Some(next) = answers.next()
            {
                last = next;
            }
            last.clone()
        }))
    }

    /// Whatever the closure says, which sees the request.
    pub fn by(answer: impl FnMut(&Hit) -> Answer + Send + 'static) -> Self {
        Self(Box::new(answer))
    }

    pub(super) fn next(&mut self, hit: &Hit) -> Answer {
        (self.0)(hit)
    }
}

impl From<Answer> for Script {
    fn from(answer: Answer) -> Self {
        Self::always(answer)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}
