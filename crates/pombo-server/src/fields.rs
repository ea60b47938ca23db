//! Reading a JSON object field by field, so that one answer names everything that is wrong with it.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;

use pombo_domain::json;
use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::problem::{Code, Problem};
use crate::shapes::FieldError;

/// Fields in one object above which it is refused unread: far more than any call knows.
const FIELDS_MAX: usize = 1000;

/// An object whose values are not looked into before they are asked for.
///
/// Every reader notes its field as known; what nobody asked for is an unknown field in [`Fields::finish`].
/// Readers give `None` both for "not there" (or `null`) and for "wrong"; wrong ones are noted.
pub(crate) struct Fields<'a> {
    entries: Vec<(Cow<'a, str>, &'a RawValue)>,
    known: Vec<&'static str>,
    errors: Vec<FieldError>,
}

/// How a field stands in a partial change.
pub(crate) enum Given<'a> {
    Absent,
    Null,
    Value(&'a RawValue),
}

impl<'a> Fields<'a> {
    /// Reads the outline of a document. An empty body is an empty object.
    ///
    /// # Errors
    /// 400 with the byte where it stops being JSON; 422 where it is JSON but no object.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        if bytes.is_empty() {
            return Ok(Self::of(Vec::new()));
        }
        match serde_json::from_slice::<Outline<'a>>(bytes) {
            Ok(Outline(entries)) => Ok(Self::of(entries)),
            // "Not an object" is found at the first byte; the rest may still be no JSON.
            Err(_) => match serde_json::from_slice::<&RawValue>(bytes) {
                Err(error) => Err(not_json(bytes, &error)),
                Ok(_) => Err(Problem::field("", "type", "must be a JSON object of at most 1000 fields")),
            },
        }
    }

    fn of(entries: Vec<(Cow<'a, str>, &'a RawValue)>) -> Self {
        Self { entries, known: Vec::with_capacity(16), errors: Vec::new() }
    }

    /// The value as it stands, `null` included.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        self.known.push(name);
        let mut found = self.entries.iter().filter(|(key, _)| key == name).map(|(_, value)| *value);
        let first = found.next();
        if found.next().is_some() {
            self.error(name, "duplicate", "is given twice");
        }
        first
    }

    /// The field with `null` told apart from absence.
    pub(crate) fn given(&mut self, name: &'static str) -> Given<'a> {
        match self.raw(name) {
            None => Given::Absent,
            Some(raw) if raw.get() == "null" => Given::Null,
            Some(raw) => Given::Value(raw),
        }
    }

    fn value(&mut self, name: &'static str) -> Option<&'a RawValue> {
        self.raw(name).filter(|raw| raw.get() != "null")
    }

    /// A string.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<Cow<'a, str>> {
        let raw = self.value(name)?;
        self.noted(name, read_text(raw))
    }

    /// A string with a grammar.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&mut self, name: &'static str) -> Option<T> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.error(name, "invalid", error.to_string());
                None
            }
        }
    }

    /// A whole number in a range.
    pub(crate) fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let raw = self.value(name)?;
        self.noted(name, read_integer(raw, range))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        let raw = self.value(name)?;
        self.noted(name, read_boolean(raw))
    }

    /// A text for people, at most `max` bytes.
    pub(crate) fn prose(&mut self, name: &'static str, max: usize) -> Option<String> {
        let raw = self.value(name)?;
        self.noted(name, read_prose(raw, max))
    }

    /// A list of values, each as it stands.
    pub(crate) fn list(&mut self, name: &'static str) -> Option<Vec<&'a RawValue>> {
        let raw = self.value(name)?;
        self.noted(name, read_list(raw))
    }

    /// Notes an error of a field.
    pub(crate) fn error(&mut self, field: impl Into<String>, code: &str, message: impl Into<String>) {
        self.errors.push(FieldError::new(field, code, message));
    }

    /// Notes an error that was found elsewhere.
    pub(crate) fn note(&mut self, error: FieldError) {
        self.errors.push(error);
    }

    /// Notes the errors of a value that was read elsewhere.
    pub(crate) fn noted<T>(&mut self, name: &str, read: Result<T, Wrong>) -> Option<T> {
        read.map_err(|wrong| self.errors.extend(wrong.into_errors(name))).ok()
    }

    /// Notes a field that must be there and was not given at all.
    pub(crate) fn require<T>(&mut self, name: &'static str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.errors.iter().any(|error| is_or_in(&error.field, name)) {
            self.error(name, "required", "is required");
        }
        value
    }

    /// Whether nothing was noted so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// Every error that was noted, and every field that nobody asked for.
    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        let mut unknown: Vec<&str> = Vec::new();
        for (key, _) in &self.entries {
            if !self.known.contains(&&**key) && !unknown.contains(&&**key) {
                unknown.push(key);
            }
        }
        let unknown: Vec<FieldError> =
            unknown.iter().take(20).map(|key| unknown_field(key, &self.known, "field")).collect();
        self.errors.extend(unknown);
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors)) }
    }
}

fn is_or_in(field: &str, name: &str) -> bool {
    field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// What is wrong with a value, before it is known which field holds it.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// Path below the field, such as `[2]` or `.base`.
    path: String,
    code: &'static str,
    message: String,
    others: Vec<Wrong>,
}

impl Wrong {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { path: String::new(), code, message: message.into(), others: Vec::new() }
    }

    pub(crate) fn at(mut self, path: String) -> Self {
        self.path = path;
        self
    }

    /// Several at once; `None` where nothing is wrong.
    pub(crate) fn all(wrongs: Vec<Self>) -> Option<Self> {
        let mut wrongs = wrongs.into_iter();
        let mut first = wrongs.next()?;
        first.others.extend(wrongs);
        Some(first)
    }

    fn into_errors(self, field: &str) -> Vec<FieldError> {
        let mut errors = vec![FieldError::new(format!("{field}{}", self.path), self.code, self.message)];
        errors.extend(self.others.into_iter().flat_map(|other| other.into_errors(field)));
        errors
    }
}

/// Reads a string.
pub(crate) fn read_text(raw: &RawValue) -> Result<Cow<'_, str>, Wrong> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    match serde_json::from_str::<Text<'_>>(raw.get()) {
        Ok(Text(text)) => Ok(text),
        Err(_) if raw.get().starts_with('"') => {
            Err(Wrong::new("invalid", "must not hold a lone surrogate (\\ud800 to \\udfff): it is no text"))
        }
        Err(_) => Err(Wrong::new("type", "must be a string")),
    }
}

/// Reads a text for people. NUL is refused: not every database keeps it.
pub(crate) fn read_prose(raw: &RawValue, max: usize) -> Result<String, Wrong> {
    let text = read_text(raw)?;
    if text.len() > max {
        return Err(Wrong::new("too_large", format!("must be at most {max} bytes")));
    }
    if text.contains('\0') {
        return Err(Wrong::new("invalid", "must not hold the character U+0000"));
    }
    Ok(text.into_owned())
}

/// Reads `true` or `false`.
pub(crate) fn read_boolean(raw: &RawValue) -> Result<bool, Wrong> {
    serde_json::from_str(raw.get()).map_err(|_| Wrong::new("type", "must be true or false"))
}

/// Reads a whole number in a range.
pub(crate) fn read_integer(raw: &RawValue, range: RangeInclusive<i64>) -> Result<i64, Wrong> {
    let between = || format!("must be a whole number from {} to {}", range.start(), range.end());
    match serde_json::from_str::<serde_json::Number>(raw.get()) {
        Err(_) => Err(Wrong::new("type", between())),
        Ok(number) => match number.as_i64() {
            Some(value) if range.contains(&value) => Ok(value),
            _ => Err(Wrong::new("range", between())),
        },
    }
}

/// Reads a list.
pub(crate) fn read_list(raw: &RawValue) -> Result<Vec<&RawValue>, Wrong> {
    serde_json::from_str(raw.get()).map_err(|_| Wrong::new("type", "must be a list"))
}

/// Reads an object's entries in order, repeats kept.
pub(crate) fn read_object(raw: &RawValue) -> Result<Vec<(Cow<'_, str>, &RawValue)>, Wrong> {
    match serde_json::from_str::<Outline<'_>>(raw.get()) {
        Ok(Outline(entries)) => Ok(entries),
        Err(_) => Err(Wrong::new("type", "must be an object")),
    }
}

/// Reads a document with a shape of its own; the path of an error leads into it.
pub(crate) fn read_typed<T: DeserializeOwned>(raw: &RawValue) -> Result<T, Wrong> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let path = match path.as_str() {
            "." => String::new(),
            path if path.starts_with('[') => path.to_owned(),
            path => format!(".{path}"),
        };
        let message = format!("has another form than it should: {}", json::reason(error.inner()));
        Wrong::new("type", message).at(path)
    })
}

/// 400 with the place.
fn not_json(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let (offset, reason) = (json::offset(bytes, error), json::reason(error));
    Problem::new(Code::NotJson, format!("the body stops being JSON at byte {offset}: {reason}"))
}

/// The error for a name that this call does not know, with the nearest one it does.
pub(crate) fn unknown_field(name: &str, known: &[&'static str], what: &str) -> FieldError {
    let shown: String = name.chars().take(64).collect();
    let message = match nearest(&shown, known) {
        Some(near) => format!("is no {what} of this call; did you mean `{near}`?"),
        None if known.is_empty() => format!("is no {what} of this call: it has none"),
        None => {
            let mut names = known.to_vec();
            names.sort_unstable();
            names.dedup();
            format!("is no {what} of this call; it has {}", names.join(", "))
        }
    };
    FieldError::new(shown, "unknown_field", message)
}

/// The known name that is nearest, if one is near: case aside, an edit for every three characters.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let squeeze = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let squeezed = squeeze(name);
    known
        .iter()
        .map(|candidate| (edits(&squeezed, &squeeze(candidate)), *candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= candidate.len() / 3)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, left) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The entries of an object in order, repeats kept.
struct Outline<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A key, borrowed where it holds no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Outline<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some(Key(key)) = map.next_key()? {
                    if entries.len() == FIELDS_MAX {
                        return Err(serde::de::Error::custom("too many fields"));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(problem: &Problem) -> Vec<(String, String)> {
        let errors = problem.document().errors;
        errors.into_iter().map(|error| (error.field, error.code.into_owned())).collect()
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let mut fields =
            Fields::parse(br#"{"type":5,"id":"a","id":"b","evenTypes":[],"n":1.5}"#).expect("an object");
        assert!(fields.text("type").is_none());
        assert_eq!(fields.text("id").as_deref(), Some("a"));
        assert!(fields.list("eventTypes").is_none());
        assert!(fields.integer("n", 0..=9).is_none());
        let url = fields.text("url");
        assert!(fields.require("url", url).is_none());
        let problem = fields.finish().expect_err("refused");
        let expected = [
            ("type", "type"),
            ("id", "duplicate"),
            ("n", "range"),
            ("url", "required"),
            ("evenTypes", "unknown_field"),
        ];
        assert_eq!(errors(&problem), expected.map(|(field, code)| (field.to_owned(), code.to_owned())));
        let message = &problem.document().errors[4].message;
        assert_eq!(message, "is no field of this call; did you mean `eventTypes`?");
    }

    #[test]
    fn a_wrong_field_is_not_called_missing_too() {
        let mut fields = Fields::parse(br#"{"type":5}"#).expect("an object");
        let kind = fields.text("type");
        fields.require("type", kind);
        assert_eq!(errors(&fields.finish().expect_err("refused")), [("type".to_owned(), "type".to_owned())]);
    }

    #[test]
    fn what_is_not_json_is_400_with_the_byte() {
        for (body, byte) in
            [("{\"a\":}", 5), ("{\"a\":1", 6), ("[1,", 3), ("{\"a\":1}x", 7), ("\u{feff}{}", 0)]
        {
            let problem = Fields::parse(body.as_bytes()).err().expect("refused").document();
            assert_eq!(problem.status, 400, "{body}");
            assert!(problem.detail.contains(&format!("at byte {byte}:")), "{body}: {}", problem.detail);
        }
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn json_that_is_no_object_is_422() {
        for body in ["[]", "null", "1", "\"x\""] {
            let problem = Fields::parse(body.as_bytes()).err().expect("refused").document();
            assert_eq!((problem.status, problem.errors[0].code.as_ref()), (422, "type"), "{body}");
        }
    }

    #[test]
    fn names_are_suggested_only_where_they_are_near() {
        let known = ["eventTypes", "url", "timeoutMs", "description"];
        for (given, near) in
            [("event_types", Some("eventTypes")), ("timeout", Some("timeoutMs")), ("URL", Some("url"))]
        {
            assert_eq!(nearest(given, &known), near, "{given}");
        }
        assert_eq!(nearest("rateLimit", &known), None);
    }

    #[test]
    fn escaped_keys_and_values_are_read() {
        let mut fields = Fields::parse(br#"{"ty\u0070e":"a\u0041","x":"\ud800"}"#).expect("an object");
        assert_eq!(fields.text("type").as_deref(), Some("aA"));
        assert!(fields.text("x").is_none());
        assert_eq!(errors(&fields.finish().expect_err("refused")), [("x".to_owned(), "invalid".to_owned())]);
    }
}
