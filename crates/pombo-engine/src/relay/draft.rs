//! From a row of the outbox to a draft, field by field, as the API checks a request. Nothing is repaired.

use pombo_domain::clock::Timestamp;
use pombo_domain::event::{Draft, Payload, PayloadError, ResourceVersion};
use pombo_domain::event_type::EventType;
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::limits;
use pombo_domain::name::{NameError, TenantName};
use pombo_store::outbox::OutboxRow;

use crate::catalog::Catalog;

/// The word of the reason, and a text for people.
pub(super) type Refusal = (&'static str, String);

fn refuse(reason: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Refusal {
    move |text| (reason, text.to_string())
}

/// Checks a row field by field, as the API checks a request.
pub(super) fn draft_of(catalog: &Catalog, now: Timestamp, row: &OutboxRow) -> Result<Draft, Refusal> {
    let tenant = row.tenant.parse().map_err(|e| refuse("tenant")(&format!("tenant {e}")))?;
    let kind = EventType::parse_published(&row.kind).map_err(|e| refuse("type")(&format!("type {e}")))?;
    let payload = match &row.content_type {
        None => Payload::Data(row.data.clone()),
        Some(content_type) => Payload::Raw { body: row.data.clone(), content_type: content_type.clone() },
    };
    payload.check().map_err(|error| match error {
        PayloadError::TooLarge { .. } => ("too_large", format!("data {error}")),
        PayloadError::Json(_) => ("data", format!("data {error}")),
        PayloadError::ContentType => ("content_type", format!("content_type {error}")),
    })?;
    let ordering_key = optional(row.ordering_key.as_deref(), "ordering_key")?;
    let client_key = optional(row.key.as_deref(), "key")?;
    let resource_version = match row.resource_version {
        None => None,
        Some(value) => Some(ResourceVersion::new(value).ok_or_else(|| {
            ("resource_version", format!("resource_version must be between 0 and {}", ResourceVersion::MAX))
        })?),
    };
    let targets = match &row.endpoint_id {
        None => None,
        Some(text) => Some(vec![target_of(catalog, &tenant, text)?]),
    };
    check_deliver_at(now, row)?;
    Ok(Draft {
        tenant,
        kind,
        payload,
        client_key,
        targets,
        ordering_key,
        resource_version,
        deliver_at: row.deliver_at,
    })
}

fn optional<T: std::str::FromStr<Err = NameError>>(
    text: Option<&str>,
    column: &'static str,
) -> Result<Option<T>, Refusal> {
    text.map(|text| text.parse().map_err(|error| (column, format!("{column} {error}")))).transpose()
}

fn target_of(catalog: &Catalog, tenant: &TenantName, text: &str) -> Result<EndpointId, Refusal> {
    let id: EndpointId = text.parse().map_err(|error| ("endpoint", format!("endpoint_id {error}")))?;
    match catalog.unknown_target(TenantId::of(tenant), &[id]) {
        None => Ok(id),
        Some(_) => Err(("endpoint", format!("endpoint_id: the tenant has no endpoint {id}"))),
    }
}

fn check_deliver_at(now: Timestamp, row: &OutboxRow) -> Result<(), Refusal> {
    let latest = now.plus(limits::DELIVER_AT_MAX);
    match row.deliver_at {
        Some(at) if at > latest => Err(("deliver_at", "deliver_at must be at most 30 days ahead".to_owned())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use pombo_domain::id::EventId;

    use super::*;

    fn row() -> OutboxRow {
        OutboxRow {
            seq: 1,
            id: EventId(Uuid::from_u128(1)),
            tenant: "acme".to_owned(),
            kind: "order.paid".to_owned(),
            data: "{\"n\": 1}".into(),
            ordering_key: Some("order-1".to_owned()),
            key: Some("k".to_owned()),
            resource_version: Some(7),
            deliver_at: None,
            endpoint_id: None,
            content_type: None,
            created_at: Timestamp::from_secs(1),
        }
    }

    fn refused(change: impl FnOnce(&mut OutboxRow)) -> Refusal {
        let mut row = row();
        change(&mut row);
        draft_of(&Catalog::default(), Timestamp::from_secs(10), &row).expect_err("refused")
    }

    #[test]
    fn a_sound_row_becomes_a_draft() {
        let draft = draft_of(&Catalog::default(), Timestamp::from_secs(10), &row()).expect("a draft");
        assert_eq!(draft.payload, Payload::Data("{\"n\": 1}".into()));
        assert_eq!(draft.resource_version.map(ResourceVersion::get), Some(7));
        assert_eq!(draft.client_key.expect("a key").as_str(), "k");
    }

    #[test]
    fn each_fault_has_its_word() {
        let longest = "x".repeat(limits::KEY_BYTES_MAX + 1);
        let ahead = Timestamp::from_secs(11).plus(limits::DELIVER_AT_MAX);
        let raw = |row: &mut OutboxRow| row.content_type = Some("text".to_owned());
        let unknown = EndpointId(Uuid::from_u128(9)).to_string();
        for (refusal, word) in [
            (refused(|row| row.tenant = "a b".to_owned()), "tenant"),
            (refused(|row| row.tenant = String::new()), "tenant"),
            (refused(|row| row.kind = "order paid".to_owned()), "type"),
            (refused(|row| row.kind = "pombo.test".to_owned()), "type"),
            (refused(|row| row.data = "{".into()), "data"),
            (refused(|row| row.data = b"\"\xff\"".as_slice().into()), "data"),
            (refused(|row| row.data = vec![b'1'; limits::EVENT_BODY_BYTES_MAX + 1].into()), "too_large"),
            (refused(|row| row.key = Some(longest.clone())), "key"),
            (refused(|row| row.ordering_key = Some("a\nb".to_owned())), "ordering_key"),
            (refused(|row| row.resource_version = Some(-1)), "resource_version"),
            (refused(|row| row.resource_version = Some(1 << 53)), "resource_version"),
            (refused(|row| row.deliver_at = Some(ahead)), "deliver_at"),
            (refused(|row| row.endpoint_id = Some("ep_x".to_owned())), "endpoint"),
            (refused(|row| row.endpoint_id = Some(unknown.clone())), "endpoint"),
            (refused(raw), "content_type"),
        ] {
            assert_eq!(refusal.0, word, "{}", refusal.1);
            assert!(!refusal.1.is_empty() && !refusal.1.contains('\u{fffd}'));
        }
    }
}
