//! Event types and the patterns endpoints subscribe with.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// Operational events begin with this; applications may not use it.
pub const RESERVED_PREFIX: &str = "pombo.";

/// Why a text is not an event type or a pattern. Reads alone, after the name of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventTypeError {
    /// Not `[A-Za-z0-9_.-]{1,128}`.
    #[error("must be 1 to 128 letters, digits and _ . - (such as order.paid.v1)")]
    Grammar,
    /// Begins with `pombo.`.
    #[error("must not begin with `pombo.`: those are Pombo's own operational events")]
    Reserved,
    /// A pattern with a `*` elsewhere than as `*` or at the end after a dot.
    #[error("must be an event type, a prefix ending in `.*` (such as order.*), or `*`")]
    Pattern,
    /// An empty list of patterns, which would match nothing.
    #[error("must not be empty: leave it out to receive every type")]
    NoPatterns,
    /// More patterns than allowed.
    #[error("must hold at most {0} patterns")]
    TooManyPatterns(usize),
}

/// What kind of thing happened: `[A-Za-z0-9_.-]{1,128}`, for example `order.paid.v1`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(Arc<str>);

impl EventType {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is one of Pombo's own operational events.
    pub fn is_operational(&self) -> bool {
        self.0.starts_with(RESERVED_PREFIX)
    }

    /// Reads a type that an application publishes: the grammar, and not operational.
    ///
    /// # Errors
    /// [`EventTypeError::Grammar`] or [`EventTypeError::Reserved`].
    pub fn parse_published(text: &str) -> Result<Self, EventTypeError> {
        let kind: Self = text.parse()?;
        if kind.is_operational() { Err(EventTypeError::Reserved) } else { Ok(kind) }
    }

    /// `pombo.test`, sent by the test button of an endpoint.
    pub fn test() -> Self {
        Self("pombo.test".into())
    }
}

impl FromStr for EventType {
    type Err = EventTypeError;
    fn from_str(text: &str) -> Result<Self, EventTypeError> {
        if is_type(text) { Ok(Self(text.into())) } else { Err(EventTypeError::Grammar) }
    }
}

fn is_type(text: &str) -> bool {
    (1..=limits::NAME_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// A pattern: a type, a prefix ending in `.*`, or `*`.
///
/// `order.*` matches `order.paid` and `order.paid.v1`, not `order` and not `orders.paid`. Operational types
/// match only patterns that begin with `pombo.`, so `*` means "every type of the application".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an event of this type matches.
    pub fn matches(&self, kind: &EventType) -> bool {
        let (pattern, kind_text) = (&*self.0, kind.as_str());
        if kind.is_operational() && !pattern.starts_with(RESERVED_PREFIX) {
            return false;
        }
        match pattern.strip_suffix('*') {
            Some(prefix) => kind_text.len() > prefix.len() && kind_text.starts_with(prefix),
            None => pattern == kind_text,
        }
    }
}

impl FromStr for Pattern {
    type Err = EventTypeError;
    fn from_str(text: &str) -> Result<Self, EventTypeError> {
        let stem = match text.strip_suffix('*') {
            Some("") => return Ok(Self(text.into())),
            Some(prefix) => prefix.strip_suffix('.').ok_or(EventTypeError::Pattern)?,
            None => text,
        };
        if is_type(stem) && text.len() <= limits::NAME_CHARS_MAX {
            Ok(Self(text.into()))
        } else {
            Err(EventTypeError::Pattern)
        }
    }
}

/// What an endpoint subscribes to: every type of the application, or a list of patterns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Subscription {
    /// No list was given: every type of the application (never operational events).
    #[default]
    All,
    /// One to a hundred patterns; an event matches if any does.
    Patterns(Vec<Pattern>),
}

impl Subscription {
    /// From the list a caller gave.
    ///
    /// # Errors
    /// An empty list, too many patterns, or one that is no pattern.
    pub fn from_patterns(patterns: Vec<Pattern>) -> Result<Self, EventTypeError> {
        match patterns.len() {
            0 => Err(EventTypeError::NoPatterns),
            n if n > limits::PATTERNS_MAX => Err(EventTypeError::TooManyPatterns(limits::PATTERNS_MAX)),
            _ => Ok(Self::Patterns(patterns)),
        }
    }

    /// Whether an event of this type matches.
    pub fn matches(&self, kind: &EventType) -> bool {
        match self {
            Self::All => !kind.is_operational(),
            Self::Patterns(patterns) => patterns.iter().any(|pattern| pattern.matches(kind)),
        }
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
as_text!(EventType, Pattern);

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> EventType {
        text.parse().expect("a type")
    }

    fn pattern(text: &str) -> Pattern {
        text.parse().expect("a pattern")
    }

    #[test]
    fn prefix_patterns_match_whole_segments_only() {
        assert!(pattern("order.*").matches(&kind("order.paid.v1")));
        assert!(!pattern("order.*").matches(&kind("orders.paid")));
        assert!(!pattern("order.*").matches(&kind("order")));
        assert!(!pattern("order.*").matches(&kind("order.")));
        assert!(pattern("*").matches(&kind("order.paid")));
        assert!(!pattern("order.paid").matches(&kind("order.paid.v1")));
    }

    #[test]
    fn operational_events_need_a_pattern_that_names_them() {
        assert!(!pattern("*").matches(&EventType::test()));
        assert!(!Subscription::All.matches(&EventType::test()));
        assert!(pattern("pombo.*").matches(&EventType::test()));
        assert!(pattern("pombo.test").matches(&EventType::test()));
    }

    #[test]
    fn malformed_patterns_are_refused_so_filters_never_fail_open() {
        for text in ["", "order*", "*.paid", ".*", "order.*.paid", "**", "or der", "order.**"] {
            assert_eq!(text.parse::<Pattern>(), Err(EventTypeError::Pattern), "{text:?}");
        }
        assert_eq!(Subscription::from_patterns(vec![]), Err(EventTypeError::NoPatterns));
    }

    #[test]
    fn published_types_may_not_be_operational() {
        assert_eq!(EventType::parse_published("pombo.test"), Err(EventTypeError::Reserved));
        assert_eq!(EventType::parse_published("order paid"), Err(EventTypeError::Grammar));
    }
}
