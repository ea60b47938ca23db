//! What a scheme finds in a request, and whether it holds.

use std::borrow::Cow;
use std::time::Duration;

use subtle::Choice;

use crate::{Algorithm, HeaderFault, HmacKey, Tag, VerifyError, WebhookRequest};

/// Most signatures looked at in one request; a rotation needs two.
pub(crate) const SIGNATURES_MAX: usize = 32;

/// A request that is what it claims to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Which of the secrets matched, counted from 0 in the order given.
    pub secret_index: usize,
    /// The id of the webhook that the headers carry, if the scheme has one.
    pub id: Option<String>,
    /// Whether the signature covers that id. If not, a replayed body may come under a new id.
    pub is_id_signed: bool,
    /// When it was signed, in milliseconds since the Unix epoch, if the scheme says so.
    pub timestamp_ms: Option<i64>,
}

/// The parts of a request that its signature speaks of.
pub(crate) struct Presented<'a> {
    pub(crate) algorithm: Algorithm,
    /// The signed string, in order.
    pub(crate) content: Vec<Part<'a>>,
    /// The signatures in the request, decoded, each of the right length.
    pub(crate) signatures: Vec<Vec<u8>>,
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) id: Option<&'a str>,
    pub(crate) is_id_signed: bool,
}

/// A piece of the signed string.
#[derive(Clone)]
pub(crate) enum Part<'a> {
    Text(Cow<'a, str>),
    Body,
}

impl Presented<'_> {
    /// Every signature × every key, then the time.
    pub(crate) fn verify<'k>(
        &self,
        keys: impl Iterator<Item = &'k HmacKey>,
        request: &WebhookRequest<'_>,
    ) -> Result<Verified, VerifyError> {
        let mut matching = None;
        for (index, key) in keys.enumerate() {
            // No early way out: the work depends on how many keys and signatures there are, not on which
            // of them match.
            if self.holds(key, request.body) && matching.is_none() {
                matching = Some(index);
            }
        }
        let secret_index = matching.ok_or(VerifyError::NoMatch)?;
        if let Some(timestamp) = self.timestamp {
            timestamp.check(request.now_ms, request.tolerance)?;
        }
        Ok(Verified {
            secret_index,
            id: self.id.map(str::to_owned),
            is_id_signed: self.is_id_signed,
            timestamp_ms: self.timestamp.map(Timestamp::as_ms),
        })
    }

    /// Whether any of the signatures is the one of this key over this body.
    pub(crate) fn holds(&self, key: &HmacKey, body: &[u8]) -> bool {
        let tag = tag(key, &self.content, body);
        let mut holds = Choice::from(0);
        for signature in &self.signatures {
            holds |= tag.matches(signature);
        }
        holds.into()
    }
}

/// The signature of a key over the signed string with this body.
pub(crate) fn tag(key: &HmacKey, content: &[Part<'_>], body: &[u8]) -> Tag {
    let parts: Vec<&[u8]> = content
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.as_bytes(),
            Part::Body => body,
        })
        .collect();
    key.tag(&parts)
}

/// The unit in which a scheme writes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    Seconds,
    Milliseconds,
}

/// A time as signed: Unix time in its own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp {
    pub(crate) value: i64,
    pub(crate) unit: TimeUnit,
}

impl Timestamp {
    /// Reads 1 to 18 decimal digits, no sign and no space: what fits in 64 bits and has one meaning.
    pub(crate) fn parse(text: &str, unit: TimeUnit) -> Result<Self, HeaderFault> {
        let is_plain = (1..=18).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|_| is_plain).ok_or(HeaderFault::NotATimestamp)?;
        Ok(Self { value, unit })
    }

    pub(crate) fn at(now_ms: i64, unit: TimeUnit) -> Self {
        let value = match unit {
            TimeUnit::Seconds => now_ms.div_euclid(1_000),
            TimeUnit::Milliseconds => now_ms,
        };
        Self { value, unit }
    }

    pub(crate) fn as_ms(self) -> i64 {
        match self.unit {
            TimeUnit::Seconds => self.value.saturating_mul(1_000),
            TimeUnit::Milliseconds => self.value,
        }
    }

    /// Now minus the timestamp in milliseconds, negative if it lies in the future. In a scheme of
    /// seconds the fraction of now is dropped, as its other implementations do.
    pub(crate) fn age_ms(self, now_ms: i64) -> i64 {
        Self::at(now_ms, self.unit).as_ms().saturating_sub(self.as_ms())
    }

    /// Two-sided: exactly the tolerance is still allowed.
    pub(crate) fn check(self, now_ms: i64, tolerance: Duration) -> Result<(), VerifyError> {
        let age_ms = self.age_ms(now_ms);
        let distance = Duration::from_millis(age_ms.unsigned_abs());
        if distance <= tolerance {
            Ok(())
        } else if age_ms > 0 {
            Err(VerifyError::TimestampTooOld { age: distance })
        } else {
            Err(VerifyError::TimestampTooNew { ahead: distance })
        }
    }
}
