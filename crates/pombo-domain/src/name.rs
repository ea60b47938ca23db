//! Small texts with a grammar: tenant names and the caller's own keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// Why a text is not a valid name or key. Reads alone, after the name of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing between the quotes.
    #[error("must not be empty")]
    Empty,
    /// Over the limit, given in the unit of the grammar.
    #[error("must be at most {0} bytes long")]
    TooLong(usize),
    /// A tenant name with a character outside the grammar.
    #[error("may hold only letters, digits and _ . : @ -")]
    TenantCharacter,
    /// A key with a control character.
    #[error("must not hold control characters")]
    Control,
}

macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $check:path) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text)?;
                Ok(Self(text.into()))
            }
        }

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
    };
}

text!(
    /// The name of a tenant: `[A-Za-z0-9_.:@-]{1,128}`.
    TenantName,
    check_tenant
);
text!(
    /// The caller's own id of an event, unique per tenant while it is remembered: UTF-8 without control
    /// characters, at most 255 bytes.
    ClientKey,
    check_key
);
text!(
    /// What orders events for one `ordered` endpoint: UTF-8 without control characters, at most 255 bytes.
    OrderingKey,
    check_key
);

impl TenantName {
    /// The tenant of callers that name none.
    pub fn default_tenant() -> Self {
        Self("default".into())
    }
}

fn check_tenant(text: &str) -> Result<(), NameError> {
    check_length(text, limits::NAME_CHARS_MAX)?;
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte)) {
        Ok(())
    } else {
        Err(NameError::TenantCharacter)
    }
}

fn check_key(text: &str) -> Result<(), NameError> {
    check_length(text, limits::KEY_BYTES_MAX)?;
    if text.chars().any(char::is_control) { Err(NameError::Control) } else { Ok(()) }
}

fn check_length(text: &str, max: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty),
        len if len > max => Err(NameError::TooLong(max)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_names_follow_the_grammar() {
        assert!("acme:prod_1@eu.x-y".parse::<TenantName>().is_ok());
        assert_eq!("".parse::<TenantName>(), Err(NameError::Empty));
        assert_eq!("a b".parse::<TenantName>(), Err(NameError::TenantCharacter));
        assert_eq!("a".repeat(129).parse::<TenantName>(), Err(NameError::TooLong(128)));
    }

    #[test]
    fn keys_take_any_text_without_control_characters() {
        assert!("pedido nº 45".parse::<ClientKey>().is_ok());
        assert_eq!("a\u{0}".parse::<OrderingKey>(), Err(NameError::Control));
        assert_eq!("é".repeat(128).parse::<ClientKey>(), Err(NameError::TooLong(255)));
    }
}
