//! Reading the query of a request, with the same care as a body.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use http::request::Parts;
use pombo_domain::clock::Timestamp;
use pombo_domain::id::TenantId;
use pombo_domain::limits;
use pombo_domain::name::TenantName;
use pombo_store::page::{Cursor, PageRequest};
use url::form_urlencoded;

use crate::fields::unknown_field;
use crate::page::{self, List};
use crate::problem::Problem;
use crate::shapes::{self, FieldError};

/// Longest query that is read.
const QUERY_BYTES_MAX: usize = 8 * 1024;

/// The parameters of a query. Readers work as those of [`crate::fields::Fields`].
pub(crate) struct Query {
    entries: Vec<(String, String)>,
    known: Vec<&'static str>,
    errors: Vec<FieldError>,
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    fn parse(query: &str) -> Result<Self, Problem> {
        if query.len() > QUERY_BYTES_MAX {
            return Err(Problem::field(
                "query",
                "too_large",
                format!("must be at most {QUERY_BYTES_MAX} bytes"),
            ));
        }
        let entries = form_urlencoded::parse(query.as_bytes());
        let entries = entries.map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
        Ok(Self { entries, known: Vec::new(), errors: Vec::new() })
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Option<&str> {
        self.known.push(name);
        let mut found = self.entries.iter().filter(|(key, _)| key == name);
        let first = found.next();
        if found.next().is_some() {
            self.errors.push(FieldError::new(name, "duplicate", "is given twice: give one value"));
        }
        first.map(|(_, value)| value.as_str())
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(&mut self, name: &'static str) -> Option<T> {
        match self.text(name)?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                let message = T::Err::to_string(&error);
                self.error(name, "invalid", message);
                None
            }
        }
    }

    /// A text for people, at most `max` bytes.
    pub(crate) fn prose(&mut self, name: &'static str, max: usize) -> Option<String> {
        let text = self.text(name)?.to_owned();
        if text.len() > max || text.contains('\0') {
            self.error(name, "invalid", format!("must be at most {max} bytes, without the character U+0000"));
            return None;
        }
        Some(text)
    }

    /// An instant.
    pub(crate) fn instant(&mut self, name: &'static str) -> Option<Timestamp> {
        match Timestamp::parse(self.text(name)?) {
            Ok(at) => Some(at),
            Err(error) => {
                self.error(name, "invalid", error.to_string());
                None
            }
        }
    }

    /// One of a few words.
    pub(crate) fn word<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str) -> Option<T>,
        words: &[&str],
    ) -> Option<T> {
        let found = read(self.text(name)?);
        if found.is_none() {
            self.error(name, "invalid", format!("must be one of {}", words.join(", ")));
        }
        found
    }

    /// `true` or `false`; a name without value is `true`.
    pub(crate) fn flag(&mut self, name: &'static str) -> bool {
        match self.text(name) {
            None | Some("false") => false,
            Some("true" | "") => true,
            Some(_) => {
                self.error(name, "type", "must be true or false");
                false
            }
        }
    }

    /// `tenant`.
    pub(crate) fn tenant(&mut self) -> Option<TenantId> {
        self.parsed::<TenantName>("tenant").map(|name| TenantId::of(&name))
    }

    /// `limit` and `after`.
    pub(crate) fn page(&mut self, list: List) -> PageRequest {
        let limit = match self.text("limit").map(str::parse::<u16>) {
            None => limits::PAGE_DEFAULT,
            Some(Ok(limit)) if (1..=limits::PAGE_MAX).contains(&limit) => limit,
            Some(_) => {
                let message = format!("must be a whole number from 1 to {}", limits::PAGE_MAX);
                self.error("limit", "range", message);
                limits::PAGE_DEFAULT
            }
        };
        let after: Option<Cursor> = match self.text("after").map(|text| page::decode(list, text)) {
            None => None,
            Some(Some(cursor)) => Some(cursor),
            Some(None) => {
                self.error("after", "invalid", "must be the `next` of an earlier page of this list");
                None
            }
        };
        PageRequest { limit, after }
    }

    pub(crate) fn error(&mut self, name: &'static str, code: &str, message: impl Into<Cow<'static, str>>) {
        self.errors.push(FieldError::new(name, code, message.into()));
    }

    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        let mut unknown: Vec<&str> = Vec::new();
        for (key, _) in &self.entries {
            if !self.known.contains(&key.as_str()) && !unknown.contains(&key.as_str()) {
                unknown.push(key);
            }
        }
        let unknown: Vec<FieldError> =
            unknown.iter().take(20).map(|key| unknown_field(key, &self.known, "parameter")).collect();
        self.errors.extend(unknown);
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors)) }
    }
}

/// A page as it is shown.
pub(crate) fn shown_page<T, U>(
    list: List,
    page: pombo_store::Page<T>,
    show: impl FnMut(T) -> U,
) -> shapes::Page<U> {
    shapes::Page {
        data: page.items.into_iter().map(show).collect(),
        next: page.next.map(|cursor| page::encode(list, cursor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_unknown_names_and_bad_values_are_named() {
        let mut query = Query::parse("limit=0&tenant=a%20b&tenant=c&after=zzz&statu=dead&unmatched=maybe")
            .expect("short");
        query.tenant();
        query.page(List::Events);
        query.flag("unmatched");
        query.word("status", |_| None::<()>, &["dead"]);
        let problem = query.finish().expect_err("refused").document();
        let named: Vec<_> =
            problem.errors.iter().map(|error| (error.field.as_str(), error.code.as_ref())).collect();
        let expected = [
            ("tenant", "duplicate"),
            ("tenant", "invalid"),
            ("limit", "range"),
            ("after", "invalid"),
            ("unmatched", "type"),
            ("statu", "unknown_field"),
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn without_a_query_the_defaults_hold() {
        let mut query = Query::parse("").expect("short");
        let page = query.page(List::Events);
        assert_eq!((page.limit, page.after), (50, None));
        assert_eq!(query.tenant(), None);
        assert!(query.finish().is_ok());
    }
}
