//! A webhook request as a signature scheme sees it.

use std::time::Duration;

use crate::HeaderFault;
use crate::error::HeaderProblem;

/// How far a timestamp may lie from now, in either direction, unless told otherwise: 300 seconds.
pub const TOLERANCE_DEFAULT: Duration = Duration::from_mins(5);

/// The headers of a request in their order, repeats kept, names in any case.
///
/// Collected from pairs, so that any HTTP library fits:
///
/// ```
/// use pombo_signature::HeaderList;
/// let headers: HeaderList<'_> = [("Webhook-Id", "msg_1".as_bytes())].into_iter().collect();
/// assert_eq!(headers.all("webhook-id").collect::<Vec<_>>(), [b"msg_1"]);
/// ```
#[derive(Clone, Default)]
pub struct HeaderList<'a>(Vec<(&'a str, &'a [u8])>);

impl<'a> FromIterator<(&'a str, &'a [u8])> for HeaderList<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a [u8])>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl<'a> HeaderList<'a> {
    /// Every value of the header, in order.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a [u8]> + 's {
        self.0.iter().filter(move |(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// The names, in order, repeats kept.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.0.iter().map(|(name, _)| *name)
    }

    /// Whether the header is there at all.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The one value of a header, `None` if it is absent; equal repeats count as one.
    ///
    /// # Errors
    /// A malformed header if it is not text, or repeated with different values: then nobody
    /// can say which of them was signed.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&'a str>, HeaderProblem> {
        let mut values = self.all(name);
        let Some(first) = values.next() else { return Ok(None) };
        if values.any(|other| other != first) {
            return Err(HeaderProblem::malformed(name, HeaderFault::Repeated));
        }
        text(name, first).map(Some)
    }

    /// The one value of a header that must be there and not empty.
    pub(crate) fn needed(&self, name: &str) -> Result<&'a str, HeaderProblem> {
        match self.one(name)? {
            None => Err(HeaderProblem::missing(name)),
            Some("") => Err(HeaderProblem::malformed(name, HeaderFault::Empty)),
            Some(value) => Ok(value),
        }
    }

    /// Every value of a header that must be there.
    pub(crate) fn needed_all(&self, name: &str) -> Result<Vec<&'a str>, HeaderProblem> {
        let values: Vec<&str> = self.all(name).map(|value| text(name, value)).collect::<Result<_, _>>()?;
        if values.is_empty() { Err(HeaderProblem::missing(name)) } else { Ok(values) }
    }
}

fn text<'a>(name: &str, value: &'a [u8]) -> Result<&'a str, HeaderProblem> {
    str::from_utf8(value).map_err(|_| HeaderProblem::malformed(name, HeaderFault::NotText))
}

/// A request to verify, or one to sign: the same parts are looked at.
///
/// It has no `Debug`: headers and bodies do not belong in logs.
#[derive(Clone)]
pub struct WebhookRequest<'a> {
    /// Headers as they came, or those that the request to sign already has.
    pub headers: HeaderList<'a>,
    /// The raw body, byte for byte, before any decoding.
    pub body: &'a [u8],
    /// The public URL that the sender called, for schemes that sign it.
    pub url: Option<&'a str>,
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// How far a timestamp may lie from now in either direction.
    pub tolerance: Duration,
}

impl<'a> WebhookRequest<'a> {
    /// A request without a URL, with [`TOLERANCE_DEFAULT`].
    pub fn new(headers: HeaderList<'a>, body: &'a [u8], now_ms: i64) -> Self {
        Self { headers, body, url: None, now_ms, tolerance: TOLERANCE_DEFAULT }
    }
}
