//! When a delivery is tried again.

use std::time::Duration;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::limits;
use crate::span;

/// When attempts are made. Resolved endpoint → installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delays before jitter.
    pub backoff: Backoff,
    /// How delays are spread.
    pub jitter: Jitter,
}

/// The delays between attempts, before jitter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backoff {
    /// The first entry is the delay before attempt 1; the length is the number of attempts.
    Schedule(Vec<Duration>),
    /// Attempt n+1 follows after min(cap, base · factor^(n−1)); attempt 1 at once.
    Exponential {
        /// Delay before attempt 2.
        base: Duration,
        /// Growth per attempt, 1–10.
        factor: u32,
        /// Largest delay.
        cap: Duration,
        /// Number of attempts.
        attempts: u16,
    },
}

/// How a delay is spread, so that receivers that come back are not met by everyone at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jitter {
    /// The delay as it is.
    None,
    /// Uniform in 0 … delay.
    Full,
    /// Uniform in delay/2 … delay.
    Equal,
    /// Uniform in delay ± n %.
    Percent(u8),
}

impl Default for RetryPolicy {
    /// `[0s,30s,2m,10m,1h,6h,24h]` with ±20 %.
    fn default() -> Self {
        let schedule = [0, 30, 120, 600, 3600, 6 * 3600, 24 * 3600];
        Self {
            backoff: Backoff::Schedule(schedule.into_iter().map(Duration::from_secs).collect()),
            jitter: Jitter::Percent(20),
        }
    }
}

impl RetryPolicy {
    /// How many attempts a delivery has.
    pub fn attempts(&self) -> u16 {
        match &self.backoff {
            Backoff::Schedule(delays) => delays.len() as u16,
            Backoff::Exponential { attempts, .. } => *attempts,
        }
    }

    /// The jittered delay before attempt `number` (from 1), or `None` where the policy has no such attempt.
    pub fn delay_before(&self, number: u16, rng: &mut impl Rng) -> Option<Duration> {
        Some(self.jitter.apply(self.plain_delay_before(number)?, rng))
    }

    fn plain_delay_before(&self, number: u16) -> Option<Duration> {
        if number == 0 || number > self.attempts() {
            return None;
        }
        match &self.backoff {
            Backoff::Schedule(delays) => delays.get(usize::from(number) - 1).copied(),
            Backoff::Exponential { .. } if number == 1 => Some(Duration::ZERO),
            Backoff::Exponential { base, factor, cap, .. } => {
                let growth = factor.checked_pow(u32::from(number) - 2);
                Some(growth.and_then(|growth| base.checked_mul(growth)).map_or(*cap, |delay| delay.min(*cap)))
            }
        }
    }
}

impl Jitter {
    fn apply(self, delay: Duration, rng: &mut impl Rng) -> Duration {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let (low, high) = match self {
            Self::None => return delay,
            Self::Full => (0, micros),
            Self::Equal => (micros / 2, micros),
            Self::Percent(percent) => {
                let spread = (u128::from(micros) * u128::from(percent) / 100) as u64;
                (micros.saturating_sub(spread), micros.saturating_add(spread))
            }
        };
        Duration::from_micros(rng.random_range(low..=high))
    }
}

/// Why a retry policy is refused. Reads alone, after the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetryError {
    /// Neither or both of `schedule` and `exponential`.
    #[error("must have either `schedule` or `exponential`")]
    Kind,
    /// No entry, or too many.
    #[error("`schedule` must have 1 to {max} entries", max = limits::SCHEDULE_MAX)]
    ScheduleLength,
    /// A delay that is no duration, or over seven days.
    #[error("`{field}`: {value:?} must be a duration such as 30s, at most 7d")]
    Delay {
        /// `schedule`, `base` or `cap`.
        field: &'static str,
        /// What was given.
        value: String,
    },
    /// Number out of range.
    #[error("`{field}` must be between {min} and {max}")]
    Range {
        /// `factor`, `attempts` or `percent`.
        field: &'static str,
        /// Smallest allowed.
        min: u32,
        /// Largest allowed.
        max: u32,
    },
    /// Another jitter.
    #[error("`jitter` must be \"none\", \"full\", \"equal\" or {{\"percent\": 0 to 100}}")]
    Jitter,
}

/// The JSON form of a policy (the retry policy of the API reference). Conversion checks every bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryDocument {
    /// Delays before each attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Vec<String>>,
    /// Growing delays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exponential: Option<ExponentialDocument>,
    /// Spread of the delays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<JitterDocument>,
}

/// The JSON form of [`Backoff::Exponential`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExponentialDocument {
    /// Delay before attempt 2, `30s`.
    pub base: String,
    /// Growth per attempt.
    pub factor: u32,
    /// Largest delay.
    pub cap: String,
    /// Number of attempts.
    pub attempts: u32,
}

/// The JSON form of [`Jitter`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JitterDocument {
    /// `"none"`, `"full"`, `"equal"`.
    Word(String),
    /// `{"percent": 20}`.
    Percent {
        /// 0 to 100.
        percent: u32,
    },
}

impl TryFrom<RetryDocument> for RetryPolicy {
    type Error = RetryError;

    fn try_from(document: RetryDocument) -> Result<Self, RetryError> {
        let backoff = match (document.schedule, document.exponential) {
            (Some(schedule), None) => schedule_from(&schedule)?,
            (None, Some(exponential)) => exponential_from(&exponential)?,
            _ => return Err(RetryError::Kind),
        };
        let jitter = document.jitter.map_or(Ok(Jitter::Percent(20)), jitter_from)?;
        Ok(Self { backoff, jitter })
    }
}

fn schedule_from(entries: &[String]) -> Result<Backoff, RetryError> {
    if !(1..=limits::SCHEDULE_MAX).contains(&entries.len()) {
        return Err(RetryError::ScheduleLength);
    }
    entries.iter().map(|entry| delay("schedule", entry)).collect::<Result<_, _>>().map(Backoff::Schedule)
}

fn exponential_from(document: &ExponentialDocument) -> Result<Backoff, RetryError> {
    let attempts = range("attempts", document.attempts, 1, u32::from(limits::EXPONENTIAL_ATTEMPTS_MAX))?;
    Ok(Backoff::Exponential {
        base: delay("base", &document.base)?,
        factor: range("factor", document.factor, 1, 10)?,
        cap: delay("cap", &document.cap)?,
        attempts: attempts as u16,
    })
}

fn jitter_from(document: JitterDocument) -> Result<Jitter, RetryError> {
    match document {
        JitterDocument::Word(word) => match word.as_str() {
            "none" => Ok(Jitter::None),
            "full" => Ok(Jitter::Full),
            "equal" => Ok(Jitter::Equal),
            _ => Err(RetryError::Jitter),
        },
        JitterDocument::Percent { percent } => Ok(Jitter::Percent(range("percent", percent, 0, 100)? as u8)),
    }
}

fn delay(field: &'static str, text: &str) -> Result<Duration, RetryError> {
    span::parse(text)
        .ok()
        .filter(|delay| *delay <= limits::RETRY_DELAY_MAX)
        .ok_or_else(|| RetryError::Delay { field, value: text.to_owned() })
}

fn range(field: &'static str, value: u32, min: u32, max: u32) -> Result<u32, RetryError> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(RetryError::Range { field, min, max }) }
}

impl From<&RetryPolicy> for RetryDocument {
    fn from(policy: &RetryPolicy) -> Self {
        let (schedule, exponential) = match &policy.backoff {
            Backoff::Schedule(delays) => {
                (Some(delays.iter().map(|delay| span::show(*delay)).collect()), None)
            }
            Backoff::Exponential { base, factor, cap, attempts } => (
                None,
                Some(ExponentialDocument {
                    base: span::show(*base),
                    factor: *factor,
                    cap: span::show(*cap),
                    attempts: u32::from(*attempts),
                }),
            ),
        };
        let jitter = match policy.jitter {
            Jitter::None => JitterDocument::Word("none".into()),
            Jitter::Full => JitterDocument::Word("full".into()),
            Jitter::Equal => JitterDocument::Word("equal".into()),
            Jitter::Percent(percent) => JitterDocument::Percent { percent: u32::from(percent) },
        };
        Self { schedule, exponential, jitter: Some(jitter) }
    }
}

/// Reads a `Retry-After` value (RFC 9110 section 10.2.3): seconds or an HTTP date.
///
/// Returns how long to wait from `now`, capped at [`limits::RETRY_AFTER_MAX`]; `None` for anything
/// malformed, negative or past, which is ignored.
pub fn parse_retry_after(value: &[u8], now: Timestamp) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    let wait = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that do not fit are a very long time, and capped like one.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        let at = date.duration_since(std::time::UNIX_EPOCH).ok()?;
        Duration::from_secs(at.as_secs().checked_sub(u64::try_from(now.as_secs()).ok()?)?)
    };
    (wait > Duration::ZERO).then(|| wait.min(limits::RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
