//! WHERE clauses that are put together from a filter, and pages cut from a list.

use std::fmt;

use rusqlite::ParamsFromIter;
use rusqlite::types::Value;
use uuid::Uuid;

use pombo_domain::clock::Timestamp;
use pombo_store::page::{Cursor, Page, PageRequest};

/// Conditions that must all hold. Texts are ours; whatever comes from a caller is a parameter.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    texts: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    /// A condition without a parameter.
    pub(crate) fn and(&mut self, text: &str) {
        self.texts.push(text.to_owned());
    }

    fn compare(&mut self, column: &str, operator: &str, value: Value) {
        self.values.push(value);
        self.texts.push(format!("{column} {operator} ?{}", self.values.len()));
    }

    pub(crate) fn id(&mut self, column: &str, id: Uuid) {
        self.compare(column, "=", Value::Blob(id.as_bytes().to_vec()));
    }

    pub(crate) fn word(&mut self, column: &str, word: &str) {
        self.compare(column, "=", Value::Text(word.to_owned()));
    }

    /// Between two ids, both included.
    pub(crate) fn id_between(&mut self, column: &str, low: Uuid, high: Uuid) {
        self.compare(column, ">=", Value::Blob(low.as_bytes().to_vec()));
        self.compare(column, "<=", Value::Blob(high.as_bytes().to_vec()));
    }

    pub(crate) fn id_below(&mut self, column: &str, id: Uuid) {
        self.compare(column, "<", Value::Blob(id.as_bytes().to_vec()));
    }

    /// `since` included, `until` not.
    pub(crate) fn between(&mut self, column: &str, since: Option<Timestamp>, until: Option<Timestamp>) {
        if let Some(since) = since {
            self.compare(column, ">=", Value::Integer(since.as_micros()));
        }
        if let Some(until) = until {
            self.compare(column, "<", Value::Integer(until.as_micros()));
        }
    }

    /// Only what lies behind the cursor in a list that runs from new to old.
    pub(crate) fn behind(&mut self, at: &str, id: &str, cursor: Option<Cursor>) {
        if let Some(cursor) = cursor {
            self.values.push(Value::Integer(cursor.at.as_micros()));
            self.values.push(Value::Blob(cursor.id.as_bytes().to_vec()));
            let last = self.values.len();
            self.texts.push(format!("({at}, {id}) < (?{}, ?{last})", last - 1));
        }
    }

    pub(crate) fn params(&self) -> ParamsFromIter<&Vec<Value>> {
        rusqlite::params_from_iter(&self.values)
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.texts.is_empty() { f.write_str("TRUE") } else { f.write_str(&self.texts.join(" AND ")) }
    }
}

/// Cuts a list that was read one item too long into a page.
pub(crate) fn page_of<T>(
    mut items: Vec<T>,
    request: PageRequest,
    key: impl Fn(&T) -> (Timestamp, Uuid),
) -> Page<T> {
    let more = items.len() > usize::from(request.limit);
    items.truncate(usize::from(request.limit));
    let last = items.last().filter(|_| more);
    let next = last.map(|item| {
        let (at, id) = key(item);
        Cursor { at, id }
    });
    Page { items, next }
}
