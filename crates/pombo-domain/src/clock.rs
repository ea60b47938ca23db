//! Instants. All stored times and comparisons use the database's clock (docs/protocol.md, S and C2).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant: microseconds since 1970-01-01T00:00:00Z, by the database's clock.
///
/// Shown in RFC 3339 UTC with milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every instant: a parked delivery waits for this (`infinity` in PostgreSQL).
    pub const INFINITY: Self = Self(i64::MAX);

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// From seconds since the epoch.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Whole seconds since the epoch, rounded down.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// The same instant cut to whole milliseconds, as it is shown.
    #[must_use]
    pub const fn to_millis_precision(self) -> Self {
        Self(self.as_millis() * 1000)
    }

    /// This instant and `span` more; stops at [`Timestamp::INFINITY`].
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This instant and `span` less.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this instant; zero where `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads RFC 3339 (`2026-11-30T20:22:00Z`, any offset, up to nanoseconds, which are cut to micros).
    ///
    /// # Errors
    /// The text is not RFC 3339.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let at: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        Ok(Self(at.as_microsecond()))
    }
}

/// A text is not an RFC 3339 instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 time such as 2026-11-30T20:22:00.000Z")]
pub struct TimestampError;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.as_millis()) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => f.write_str("infinity"),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_with_milliseconds_in_utc() {
        let at = Timestamp::from_micros(1_764_534_120_007_999);
        assert_eq!(at.to_string(), "2025-11-30T20:22:00.007Z");
        assert_eq!(Timestamp::from_secs(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::INFINITY.to_string(), "infinity");
    }

    #[test]
    fn read_with_any_offset() {
        assert_eq!(
            Timestamp::parse("2025-11-30T17:22:00.5-03:00"),
            Ok(Timestamp::from_millis(1_764_534_120_500))
        );
        assert_eq!(Timestamp::parse("yesterday"), Err(TimestampError));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::INFINITY.plus(Duration::from_secs(1)), Timestamp::INFINITY);
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Duration::ZERO);
    }
}
