//! Events: what happened, and the exact bytes that tell it.

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::event_type::EventType;
use crate::id::{EndpointId, EventId, TenantId};
use crate::json::{self, JsonError};
use crate::limits;
use crate::name::{ClientKey, OrderingKey, TenantName};

/// Content type of an enveloped event.
pub const JSON_CONTENT_TYPE: &str = "application/json";

/// Where an event came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The HTTP API.
    Api,
    /// A row of an outbox.
    Outbox,
    /// Pombo itself (`pombo.test` and other operational events).
    Pombo,
}

impl Origin {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Outbox => "outbox",
            Self::Pombo => "pombo",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Api, Self::Outbox, Self::Pombo].into_iter().find(|origin| origin.as_str() == word)
    }
}

/// What a caller gave as the content of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON, kept byte for byte and wrapped as `data` of the envelope.
    Data(Bytes),
    /// Bytes sent exactly as given, with their content type.
    Raw {
        /// The bytes.
        body: Bytes,
        /// `content-type` of the request that carries them.
        content_type: String,
    },
}

/// `resourceVersion`: a counter of the caller, 0 … 2^53 − 1, by which receivers drop what is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceVersion(i64);

impl ResourceVersion {
    /// The largest value that every JSON reader keeps exactly.
    pub const MAX: i64 = (1 << 53) - 1;

    /// From a number.
    pub fn new(value: i64) -> Option<Self> {
        (0..=Self::MAX).contains(&value).then_some(Self(value))
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// What a caller wants told, checked field by field but not yet an event.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Whose endpoints get it.
    pub tenant: TenantName,
    /// What kind of thing happened.
    pub kind: EventType,
    /// The content.
    pub payload: Payload,
    /// The caller's own id, unique per tenant while remembered.
    pub client_key: Option<ClientKey>,
    /// Only these endpoints, instead of all that subscribe.
    pub targets: Option<Vec<EndpointId>>,
    /// What orders it.
    pub ordering_key: Option<OrderingKey>,
    /// The caller's counter.
    pub resource_version: Option<ResourceVersion>,
    /// Not before this instant.
    pub deliver_at: Option<Timestamp>,
}

/// An accepted event. Never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its id, the `webhook-id` of every attempt.
    pub id: EventId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// What kind of thing happened.
    pub kind: EventType,
    /// The exact bytes that are signed and sent.
    pub body: Bytes,
    /// Their content type.
    pub content_type: String,
    /// What orders it.
    pub ordering_key: Option<OrderingKey>,
    /// The caller's counter.
    pub resource_version: Option<ResourceVersion>,
    /// Where it came from.
    pub origin: Origin,
    /// When it was accepted (API), or when its row was written (outbox).
    pub created_at: Timestamp,
}

/// Why a payload cannot be the content of an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Over [`limits::EVENT_BODY_BYTES_MAX`].
    #[error("must be at most {max} bytes, is {len}")]
    TooLarge {
        /// The bytes given.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// `data` is not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A content type that cannot be sent as a header.
    #[error("must be a media type such as text/plain, of visible ASCII, at most 255 bytes")]
    ContentType,
}

impl Payload {
    /// Checks size, JSON and content type.
    ///
    /// # Errors
    /// See [`PayloadError`]; nothing is repaired, bytes are kept or refused.
    pub fn check(&self) -> Result<(), PayloadError> {
        let bytes = match self {
            Self::Data(bytes) | Self::Raw { body: bytes, .. } => bytes,
        };
        if bytes.len() > limits::EVENT_BODY_BYTES_MAX {
            return Err(PayloadError::TooLarge { len: bytes.len(), max: limits::EVENT_BODY_BYTES_MAX });
        }
        match self {
            Self::Data(data) => Ok(json::check(data)?),
            Self::Raw { content_type, .. } if !is_media_type(content_type) => Err(PayloadError::ContentType),
            Self::Raw { .. } => Ok(()),
        }
    }
}

fn is_media_type(text: &str) -> bool {
    text.len() <= 255
        && text.split_once('/').is_some_and(|(kind, sub)| !kind.is_empty() && !sub.is_empty())
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// The inputs of [`build_body`], all of them: the body is a pure function of these (docs/protocol.md A2).
#[derive(Debug, Clone, Copy)]
pub struct BodyParts<'a> {
    /// The event's id.
    pub id: EventId,
    /// The event's type.
    pub kind: &'a EventType,
    /// The event's creation, shown with milliseconds.
    pub created_at: Timestamp,
    /// `data`, checked JSON, copied byte for byte.
    pub data: &'a [u8],
    /// The caller's counter.
    pub resource_version: Option<ResourceVersion>,
}

/// Builds the body `{"id","type","createdAt","data"[,"resourceVersion"]}` with `data` byte for byte.
///
/// Ids, types and times hold no character that JSON would escape, so nothing is.
pub fn build_body(parts: BodyParts<'_>) -> Bytes {
    let mut body = Vec::with_capacity(parts.data.len() + 192);
    body.extend_from_slice(b"{\"id\":\"");
    body.extend_from_slice(parts.id.to_string().as_bytes());
    body.extend_from_slice(b"\",\"type\":\"");
    body.extend_from_slice(parts.kind.as_str().as_bytes());
    body.extend_from_slice(b"\",\"createdAt\":\"");
    body.extend_from_slice(parts.created_at.to_string().as_bytes());
    body.extend_from_slice(b"\",\"data\":");
    body.extend_from_slice(parts.data);
    if let Some(version) = parts.resource_version {
        body.extend_from_slice(b",\"resourceVersion\":");
        body.extend_from_slice(version.get().to_string().as_bytes());
    }
    body.push(b'}');
    body.into()
}

/// Identity of an accepted event while its `id` and time are being chosen.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The id.
    pub id: EventId,
    /// The instant of acceptance.
    pub created_at: Timestamp,
    /// The door it came through.
    pub origin: Origin,
}

impl Event {
    /// Makes the event of a checked draft. Pure: the same draft and identity give the same bytes.
    pub fn from_draft(draft: &Draft, identity: Identity) -> Self {
        let (body, content_type) = match &draft.payload {
            Payload::Data(data) => (
                build_body(BodyParts {
                    id: identity.id,
                    kind: &draft.kind,
                    created_at: identity.created_at,
                    data,
                    resource_version: draft.resource_version,
                }),
                JSON_CONTENT_TYPE.to_owned(),
            ),
            Payload::Raw { body, content_type } => (body.clone(), content_type.clone()),
        };
        Self {
            id: identity.id,
            tenant_id: TenantId::of(&draft.tenant),
            kind: draft.kind.clone(),
            body,
            content_type,
            ordering_key: draft.ordering_key.clone(),
            resource_version: draft.resource_version,
            origin: identity.origin,
            created_at: identity.created_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_keeps_data_byte_for_byte() {
        let data = br#"{ "a": 12.50, "n": 9007199254740993 , "a":"\ud800\u0000" }"#;
        let body = build_body(BodyParts {
            id: EventId(uuid::Uuid::nil()),
            kind: &"order.paid".parse().expect("a type"),
            created_at: Timestamp::from_micros(1_764_534_120_007_999),
            data,
            resource_version: ResourceVersion::new(7),
        });
        let expected = [
            br#"{"id":"evt_00000000000000000000000000","type":"order.paid","createdAt":"2025-11-30T20:22:00.007Z","data":"#
                .as_slice(),
            data,
            br#","resourceVersion":7}"#,
        ]
        .concat();
        assert_eq!(body, expected);
    }

    #[test]
    fn resource_version_stays_exact_in_every_json_reader() {
        assert!(ResourceVersion::new(ResourceVersion::MAX).is_some());
        assert_eq!(ResourceVersion::new(ResourceVersion::MAX + 1), None);
        assert_eq!(ResourceVersion::new(-1), None);
    }

    #[test]
    fn raw_payload_needs_a_sendable_content_type() {
        let raw = |content_type: &str| Payload::Raw { body: Bytes::new(), content_type: content_type.into() };
        assert_eq!(raw("text/plain; charset=utf-8").check(), Ok(()));
        assert_eq!(raw("text").check(), Err(PayloadError::ContentType));
        assert_eq!(raw("text/pl\nain").check(), Err(PayloadError::ContentType));
    }
}
