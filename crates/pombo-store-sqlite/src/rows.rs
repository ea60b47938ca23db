//! Reading rows: a value that is not what it should be is [`StoreError::Corrupt`], with its place.

use std::str::FromStr;
use std::time::Duration;

use rusqlite::types::{Type, ValueRef};
use rusqlite::{CachedStatement, Connection, Params, Row};
use uuid::Uuid;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::EndpointId;
use pombo_store::StoreError;

use crate::error::Fault;

/// A row being read. By convention column 0 is the row's key, which an error names.
pub(crate) struct Fields<'r> {
    row: &'r Row<'r>,
    table: &'static str,
}

type Read<T> = Result<T, Fault>;

impl<'r> Fields<'r> {
    /// Reads a row of this table.
    pub(crate) fn of(row: &'r Row<'r>, table: &'static str) -> Self {
        Self { row, table }
    }

    fn value(&self, index: usize) -> Read<ValueRef<'r>> {
        Ok(self.row.get_ref(index)?)
    }

    /// The error for an unreadable column of this row.
    pub(crate) fn corrupt(&self, column: &'static str) -> Fault {
        let id = match self.row.get_ref(0) {
            Ok(ValueRef::Blob(bytes)) => {
                Uuid::from_slice(bytes).map_or_else(|_| format!("{bytes:02x?}"), |id| id.to_string())
            }
            Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            Ok(ValueRef::Integer(number)) => number.to_string(),
            _ => "?".to_owned(),
        };
        StoreError::Corrupt { table: self.table, column, id }.into()
    }

    pub(crate) fn int<T: TryFrom<i64>>(&self, index: usize, column: &'static str) -> Read<T> {
        self.opt_int(index, column)?.ok_or_else(|| self.corrupt(column))
    }

    pub(crate) fn opt_int<T: TryFrom<i64>>(&self, index: usize, column: &'static str) -> Read<Option<T>> {
        match self.value(index)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => T::try_from(number).map(Some).map_err(|_| self.corrupt(column)),
            _ => Err(self.corrupt(column)),
        }
    }

    pub(crate) fn flag(&self, index: usize, column: &'static str) -> Read<bool> {
        match self.int::<i64>(index, column)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.corrupt(column)),
        }
    }

    pub(crate) fn time(&self, index: usize, column: &'static str) -> Read<Timestamp> {
        self.int(index, column).map(Timestamp::from_micros)
    }

    pub(crate) fn opt_time(&self, index: usize, column: &'static str) -> Read<Option<Timestamp>> {
        Ok(self.opt_int(index, column)?.map(Timestamp::from_micros))
    }

    pub(crate) fn opt_span(&self, index: usize, column: &'static str) -> Read<Option<Duration>> {
        Ok(self.opt_int(index, column)?.map(Duration::from_micros))
    }

    pub(crate) fn opt_bytes(&self, index: usize, column: &'static str) -> Read<Option<&'r [u8]>> {
        match self.value(index)? {
            ValueRef::Null => Ok(None),
            ValueRef::Blob(bytes) => Ok(Some(bytes)),
            _ => Err(self.corrupt(column)),
        }
    }

    pub(crate) fn bytes(&self, index: usize, column: &'static str) -> Read<&'r [u8]> {
        self.opt_bytes(index, column)?.ok_or_else(|| self.corrupt(column))
    }

    pub(crate) fn uuid(&self, index: usize, column: &'static str) -> Read<Uuid> {
        Uuid::from_slice(self.bytes(index, column)?).map_err(|_| self.corrupt(column))
    }

    pub(crate) fn opt_uuid(&self, index: usize, column: &'static str) -> Read<Option<Uuid>> {
        self.opt_bytes(index, column)?
            .map(|bytes| Uuid::from_slice(bytes).map_err(|_| self.corrupt(column)))
            .transpose()
    }

    pub(crate) fn opt_text(&self, index: usize, column: &'static str) -> Read<Option<&'r str>> {
        match self.value(index)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(text) => std::str::from_utf8(text).map(Some).map_err(|_| self.corrupt(column)),
            _ => Err(self.corrupt(column)),
        }
    }

    pub(crate) fn text(&self, index: usize, column: &'static str) -> Read<&'r str> {
        self.opt_text(index, column)?.ok_or_else(|| self.corrupt(column))
    }

    /// A text with a grammar.
    pub(crate) fn parse<T: FromStr>(&self, index: usize, column: &'static str) -> Read<T> {
        self.text(index, column)?.parse().map_err(|_| self.corrupt(column))
    }

    pub(crate) fn opt_parse<T: FromStr>(&self, index: usize, column: &'static str) -> Read<Option<T>> {
        let text = self.opt_text(index, column)?;
        text.map(|text| text.parse().map_err(|_| self.corrupt(column))).transpose()
    }

    /// A word of a closed set.
    pub(crate) fn word<T>(
        &self,
        index: usize,
        column: &'static str,
        from_word: fn(&str) -> Option<T>,
    ) -> Read<T> {
        from_word(self.text(index, column)?).ok_or_else(|| self.corrupt(column))
    }

    pub(crate) fn opt_word<T>(
        &self,
        index: usize,
        column: &'static str,
        from_word: fn(&str) -> Option<T>,
    ) -> Read<Option<T>> {
        let word = self.opt_text(index, column)?;
        word.map(|word| from_word(word).ok_or_else(|| self.corrupt(column))).transpose()
    }

    /// A JSON list of endpoint uuids.
    pub(crate) fn opt_targets(&self, index: usize, column: &'static str) -> Read<Option<Vec<EndpointId>>> {
        let Some(text) = self.opt_text(index, column)? else { return Ok(None) };
        let ids: Vec<Uuid> = serde_json::from_str(text).map_err(|_| self.corrupt(column))?;
        Ok(Some(ids.into_iter().map(EndpointId).collect()))
    }

    /// What an application wrote into a column: any value as the bytes it reads as, and its type.
    pub(crate) fn written(&self, index: usize) -> Read<(Type, Vec<u8>)> {
        let value = self.value(index)?;
        let bytes = match value {
            ValueRef::Null => Vec::new(),
            ValueRef::Integer(number) => number.to_string().into_bytes(),
            ValueRef::Real(number) => number.to_string().into_bytes(),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        };
        Ok((value.data_type(), bytes))
    }
}

/// The first row of a query as a domain value.
pub(crate) fn first<T>(
    connection: &Connection,
    table: &'static str,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Fields<'_>) -> Read<T>,
) -> Read<Option<T>> {
    let mut statement: CachedStatement<'_> = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    match rows.next()? {
        Some(row) => read(&Fields { row, table }).map(Some),
        None => Ok(None),
    }
}

/// All rows of a query as domain values.
pub(crate) fn all<T>(
    connection: &Connection,
    table: &'static str,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Fields<'_>) -> Read<T>,
) -> Read<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut values = Vec::new();
    while let Some(row) = rows.next()? {
        values.push(read(&Fields { row, table })?);
    }
    Ok(values)
}

/// Runs a statement that gives no rows; returns how many it changed.
pub(crate) fn change(connection: &Connection, sql: &str, params: impl Params) -> Read<usize> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}
