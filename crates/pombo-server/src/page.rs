//! Cursors of lists as text: opaque to callers, and of one list only.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pombo_domain::clock::Timestamp;
use pombo_store::page::Cursor;
use uuid::Uuid;

/// Which list a cursor belongs to: one given to another list is refused, not misread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Events = 1,
    Endpoints = 2,
    Deliveries = 3,
    DeadLetters = 4,
    Audit = 5,
}

const LEN: usize = 1 + 8 + 16;

/// The text of a cursor: URL-safe base64 of list (1), microseconds (8, big-endian) and id (16).
pub(crate) fn encode(list: List, cursor: Cursor) -> String {
    let mut bytes = [0; LEN];
    bytes[0] = list as u8;
    bytes[1..9].copy_from_slice(&cursor.at.as_micros().to_be_bytes());
    bytes[9..].copy_from_slice(cursor.id.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads what [`encode`] wrote for the same list.
pub(crate) fn decode(list: List, text: &str) -> Option<Cursor> {
    let bytes: [u8; LEN] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
    if bytes[0] != list as u8 {
        return None;
    }
    let micros = i64::from_be_bytes(bytes[1..9].try_into().ok()?);
    let id = Uuid::from_bytes(bytes[9..].try_into().ok()?);
    Some(Cursor { at: Timestamp::from_micros(micros), id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_in_its_own_list_only() {
        let cursor =
            Cursor { at: Timestamp::from_micros(1_764_500_000_123_456), id: Uuid::from_u128(u128::MAX / 3) };
        let text = encode(List::Deliveries, cursor);
        assert_eq!(decode(List::Deliveries, &text), Some(cursor));
        assert_eq!(decode(List::Events, &text), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "x", "!!!!", &"A".repeat(33), &"A".repeat(35), "eyJhIjoxfQ"] {
            assert_eq!(decode(List::Events, text), None, "{text:?}");
        }
    }
}
