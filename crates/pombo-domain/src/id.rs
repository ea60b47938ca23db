//! Identifiers: a prefix that says what the thing is, and a uuid.
//!
//! Shown as a TypeID (`evt_` and 26 characters of lower-case Crockford base32, <https://github.com/jetify-com/typeid>);
//! the bare uuid is accepted wherever an id is read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::name::TenantName;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED_LEN: usize = 26;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text has another prefix than the wanted kind of id.
    #[error("must be an id that begins with `{expected}_`, or a bare uuid")]
    Prefix {
        /// The prefix that was wanted, without the underscore.
        expected: &'static str,
    },
    /// What follows the prefix is not 26 characters of base32 that fit 128 bits.
    #[error("must be `{expected}_` followed by 26 characters of lower-case base32, or a bare uuid")]
    Suffix {
        /// The prefix that was wanted, without the underscore.
        expected: &'static str,
    },
}

fn encode(uuid: Uuid) -> [u8; ENCODED_LEN] {
    let mut value = uuid.as_u128();
    let mut out = [0; ENCODED_LEN];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    out
}

fn decode(text: &str) -> Option<Uuid> {
    let bytes = text.as_bytes();
    // 26 × 5 = 130 bits: the first character may only carry three.
    if bytes.len() != ENCODED_LEN || bytes[0] > b'7' {
        return None;
    }
    let mut value: u128 = 0;
    for byte in bytes {
        let digit = ALPHABET.iter().position(|letter| letter == byte)?;
        value = (value << 5) | digit as u128;
    }
    Some(Uuid::from_u128(value))
}

fn parse(text: &str, prefix: &'static str) -> Result<Uuid, IdError> {
    if let Some(rest) = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) {
        return decode(rest).ok_or(IdError::Suffix { expected: prefix });
    }
    // Only the hyphenated form: `Uuid::parse_str` also takes braces and urns, which no API should invite.
    if text.len() == 36
        && let Ok(uuid) = Uuid::try_parse(text)
    {
        return Ok(uuid);
    }
    Err(IdError::Prefix { expected: prefix })
}

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The prefix of the shown form, without the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// The bare uuid, as databases keep it.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let digits = encode(self.0);
                f.write_str(concat!($prefix, "_"))?;
                f.write_str(std::str::from_utf8(&digits).expect("the alphabet is ASCII"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse(text, $prefix).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
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

id!(
    /// A tenant. Derived from the tenant's name, so that no look-up stands between a row of an outbox and
    /// its tenant: two processes that meet a new name make the same tenant.
    TenantId, "ten"
);
id!(
    /// An event, and the `webhook-id` its receivers see. Random for rows of an outbox, time-ordered for
    /// events of the API; nothing relies on its order.
    EventId, "evt"
);
id!(
    /// An endpoint.
    EndpointId, "ep"
);
id!(
    /// A delivery: one event × one endpoint. See [`DeliveryId::derive`].
    DeliveryId, "dlv"
);
id!(
    /// An API key (the public name of it, never the key).
    KeyId, "key"
);
id!(
    /// An entry of the audit log.
    AuditId, "aud"
);
id!(
    /// An outbox row that could not become an event and was set aside.
    RejectedId, "rej"
);

/// Namespace of tenant ids (uuid version 5).
const TENANT_NAMESPACE: Uuid = Uuid::from_u128(0x70_6f_6d_62_6f_2d_74_65_6e_61_6e_74_2d_69_64_73);

impl TenantId {
    /// The id of the tenant with this name, the same in every process and for ever.
    pub fn of(name: &TenantName) -> Self {
        Self(Uuid::new_v5(&TENANT_NAMESPACE, name.as_str().as_bytes()))
    }
}

impl DeliveryId {
    /// The id of the delivery of `event` to `endpoint`: the millisecond of the event's `created_at` in
    /// front (uuid version 8), then 74 bits of SHA-256 over both ids.
    ///
    /// It is a pure function of the event and the endpoint, so a relay or a replay that runs twice makes
    /// the same row and the primary key drops the second (docs/protocol.md A2). Because the time leads,
    /// ids sort by the event's time, and all deliveries of one event lie in one narrow range
    /// ([`DeliveryId::range_at`]): lists and "the deliveries of this event" need no index of their own.
    pub fn derive(event: EventId, event_at: Timestamp, endpoint: EndpointId) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(event.0.as_bytes());
        hasher.update(endpoint.0.as_bytes());
        let digest = hasher.finalize();
        let mut tail = [0; 16];
        tail.copy_from_slice(&digest[..16]);
        Self(with_time(event_at, u128::from_be_bytes(tail)))
    }

    /// The smallest and the largest delivery id of events created in the same millisecond as `event_at`.
    pub fn range_at(event_at: Timestamp) -> (Self, Self) {
        (Self(with_time(event_at, 0)), Self(with_time(event_at, u128::MAX)))
    }

    /// The millisecond of the event's `created_at` that the id carries.
    pub fn event_at(self) -> Timestamp {
        Timestamp::from_millis((self.0.as_u128() >> 80) as i64)
    }
}

fn with_time(at: Timestamp, tail: u128) -> Uuid {
    const VERSION_8: u128 = 0x8 << 76;
    const VARIANT: u128 = 0b10 << 62;
    let millis = (at.as_millis().max(0) as u128) & ((1 << 48) - 1);
    let rand_a = (tail >> 64) & 0xfff;
    let rand_b = tail & ((1 << 62) - 1);
    Uuid::from_u128((millis << 80) | VERSION_8 | (rand_a << 64) | VARIANT | rand_b)
}

impl EventId {
    /// A new event id (uuid version 7) from the time and 10 random bytes.
    pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(now.as_millis().max(0) as u64, &random).into_uuid())
    }
}

macro_rules! random_id {
    ($($name:ident),*) => {$(
        impl $name {
            /// A new id (uuid version 7) from the time and 10 random bytes.
            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                Self(EventId::new(now, random).0)
            }
        }
    )*};
}
random_id!(EndpointId, KeyId, AuditId, RejectedId);

/// A run of the process that owns deliveries: its lease stands in table `session` (docs/protocol.md S1).
/// Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i32);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_form_is_a_type_id() {
        // Vector of the TypeID specification (valid.json, "valid-uuidv7").
        let uuid = Uuid::parse_str("01890a5d-ac96-774b-bcce-b302099a8057").expect("a uuid");
        assert_eq!(EventId(uuid).to_string(), "evt_01h455vb4pex5vsknk084sn02q");
        assert_eq!("evt_01h455vb4pex5vsknk084sn02q".parse(), Ok(EventId(uuid)));
        assert_eq!("01890a5d-ac96-774b-bcce-b302099a8057".parse(), Ok(EventId(uuid)));
    }

    #[test]
    fn other_prefixes_and_overflowing_suffixes_are_refused() {
        assert_eq!(
            "ep_01h455vb4pex5vsknk084sn02q".parse::<EventId>(),
            Err(IdError::Prefix { expected: "evt" })
        );
        for text in ["evt_81h455vb4pex5vsknk084sn02q", "evt_01H455VB4PEX5VSKNK084SN02Q", "evt_", "evt_01"] {
            assert_eq!(text.parse::<EventId>(), Err(IdError::Suffix { expected: "evt" }), "{text}");
        }
    }

    #[test]
    fn delivery_id_is_derived_and_lies_in_the_range_of_its_event() {
        let at = Timestamp::from_micros(1_764_500_000_123_456);
        let event = EventId(Uuid::from_u128(7));
        let endpoint = EndpointId(Uuid::from_u128(9));
        let id = DeliveryId::derive(event, at, endpoint);
        assert_eq!(id, DeliveryId::derive(event, at, endpoint));
        assert_ne!(id, DeliveryId::derive(event, at, EndpointId(Uuid::from_u128(10))));
        let (low, high) = DeliveryId::range_at(at);
        assert!(low <= id && id <= high);
        assert_eq!(id.event_at(), Timestamp::from_millis(1_764_500_000_123));
        assert_eq!(id.0.get_version_num(), 8);
    }

    #[test]
    fn tenant_id_follows_from_the_name() {
        let acme: TenantName = "acme".parse().expect("a name");
        assert_eq!(TenantId::of(&acme), TenantId::of(&acme));
        assert_ne!(TenantId::of(&acme), TenantId::of(&"acme2".parse().expect("a name")));
    }
}
