//! Rows of the outbox as applications wrote them. SQLite keeps any type in any column, so nothing here is
//! taken for granted, and nothing is lost: a row that cannot be read is set aside with its values as they are.

use rusqlite::params;
use rusqlite::types::Type;
use uuid::Uuid;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::EventId;
use pombo_store::outbox::{OutboxRow, Rejection, RelayRequest};

use crate::Tx;
use crate::error::Fault;
use crate::rows::{self, Fields};

/// Namespace of ids made for rows whose own id is no uuid.
const UNREADABLE_NAMESPACE: Uuid = Uuid::from_u128(0x70_6f_6d_62_6f_2d_6f_75_74_62_6f_78_2d_69_64_73);

const COLUMNS: &str = "SELECT seq, id, tenant, type, data, ordering_key, key, resource_version, deliver_at,\n\
    endpoint_id, content_type, created_at FROM pombo_outbox";

/// A value as written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    kind: Type,
    bytes: Vec<u8>,
}

impl Value {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn opt_text(&self) -> Option<String> {
        (self.kind != Type::Null).then(|| self.text())
    }

    fn uuid(&self) -> Option<Uuid> {
        match self.kind {
            Type::Blob => Uuid::from_slice(&self.bytes).ok(),
            Type::Text => Uuid::try_parse(std::str::from_utf8(&self.bytes).ok()?).ok(),
            _ => None,
        }
    }

    fn int(&self) -> Option<i64> {
        matches!(self.kind, Type::Integer | Type::Text).then(|| self.text().parse().ok()).flatten()
    }

    /// RFC 3339, microseconds since 1970, or what SQLite's own `datetime()` gives, which is UTC.
    fn time(&self) -> Option<Timestamp> {
        if let Some(micros) = self.int() {
            return Some(Timestamp::from_micros(micros));
        }
        let text = (self.kind == Type::Text).then(|| self.text())?;
        let zoned = || Timestamp::parse(&format!("{}Z", text.replacen(' ', "T", 1)));
        Timestamp::parse(&text).or_else(|_| zoned()).ok()
    }
}

/// A row as written. Two are equal only if every value is, type and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenRow {
    pub(super) seq: i64,
    id: Value,
    tenant: Value,
    kind: Value,
    data: Value,
    ordering_key: Value,
    key: Value,
    resource_version: Value,
    deliver_at: Value,
    endpoint_id: Value,
    content_type: Value,
    created_at: Value,
}

fn read(row: &Fields<'_>) -> Result<WrittenRow, Fault> {
    let value = |index| row.written(index).map(|(kind, bytes)| Value { kind, bytes });
    Ok(WrittenRow {
        seq: row.int(0, "seq")?,
        id: value(1)?,
        tenant: value(2)?,
        kind: value(3)?,
        data: value(4)?,
        ordering_key: value(5)?,
        key: value(6)?,
        resource_version: value(7)?,
        deliver_at: value(8)?,
        endpoint_id: value(9)?,
        content_type: value(10)?,
        created_at: value(11)?,
    })
}

/// Rows above the floor in order of `seq`, within the request's bounds.
pub(super) fn read_rows(tx: &Tx<'_>, request: &RelayRequest) -> Result<Vec<WrittenRow>, Fault> {
    let sql = format!("-- pombo:outbox_rows\n{COLUMNS} WHERE seq > ?1 ORDER BY seq LIMIT ?2");
    let mut statement = tx.prepare_cached(&sql)?;
    let mut found = statement.query(params![request.floor, request.limit])?;
    let mut written: Vec<WrittenRow> = Vec::new();
    let mut bytes = 0_usize;
    while let Some(row) = found.next()? {
        let row = read(&Fields::of(row, "outbox"))?;
        bytes = bytes.saturating_add(row.data.bytes.len());
        if bytes > request.bytes_max && !written.is_empty() {
            break;
        }
        written.push(row);
    }
    Ok(written)
}

/// Whether the row stands in the outbox exactly as it was read.
pub(super) fn still_written(tx: &Tx<'_>, row: &WrittenRow) -> Result<bool, Fault> {
    let sql = format!("-- pombo:outbox_row\n{COLUMNS} WHERE seq = ?1");
    Ok(rows::first(tx, "outbox", &sql, params![row.seq], read)?.is_some_and(|now| now == *row))
}

fn unreadable(reason: &'static str, detail: String) -> Rejection {
    Rejection { index: 0, reason, detail }
}

impl WrittenRow {
    /// The id of the event, or one that follows from what stands in its place.
    pub(super) fn event_id(&self) -> EventId {
        EventId(self.id.uuid().unwrap_or_else(|| Uuid::new_v5(&UNREADABLE_NAMESPACE, &self.id.bytes)))
    }

    /// The row as the planner wants it. Position 0 in the error is to be replaced.
    pub(super) fn parse(&self) -> Result<OutboxRow, Rejection> {
        let id = self.id.uuid().ok_or_else(|| {
            unreadable("unreadable", "`id` must be a uuid, as text or its 16 bytes".to_owned())
        })?;
        let created_at = self.created_at.time().ok_or_else(|| {
            unreadable("unreadable", "`created_at` must be microseconds since 1970 or RFC 3339".to_owned())
        })?;
        Ok(OutboxRow {
            seq: self.seq,
            id: EventId(id),
            tenant: self.tenant.text(),
            kind: self.kind.text(),
            data: self.data.bytes.clone().into(),
            ordering_key: self.ordering_key.opt_text(),
            key: self.key.opt_text(),
            resource_version: self.parse_resource_version()?,
            deliver_at: self.parse_deliver_at()?,
            endpoint_id: self.endpoint_id.opt_text(),
            content_type: self.content_type.opt_text(),
            created_at,
        })
    }

    fn parse_resource_version(&self) -> Result<Option<i64>, Rejection> {
        let value = &self.resource_version;
        match value.int() {
            None if value.kind != Type::Null => {
                Err(unreadable("resource_version", "`resource_version` must be a whole number".to_owned()))
            }
            version => Ok(version),
        }
    }

    fn parse_deliver_at(&self) -> Result<Option<Timestamp>, Rejection> {
        let value = &self.deliver_at;
        match value.time() {
            None if value.kind != Type::Null => Err(unreadable(
                "deliver_at",
                "`deliver_at` must be RFC 3339 (2026-11-30T20:22:00Z) or microseconds since 1970".to_owned(),
            )),
            at => Ok(at),
        }
    }
}
