//! JSON that is checked and never rebuilt.

use serde_json::value::RawValue;

use crate::limits;

/// Why bytes are not acceptable JSON. Reads alone, after the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not UTF-8, or not one JSON value.
    #[error("must be one JSON value; it breaks at byte {offset}: {reason}")]
    Syntax {
        /// Where, from the first byte of the value.
        offset: usize,
        /// The parser's own words.
        reason: String,
    },
    /// Nested deeper than allowed.
    #[error("must be nested at most {max} deep")]
    TooDeep {
        /// The limit.
        max: usize,
    },
}

/// Checks that `bytes` are exactly one JSON value of bounded depth (white space around it allowed).
///
/// The value itself is not looked into: `0`, `null`, `""`, duplicate keys, lone surrogates written as
/// escapes and `\u0000` are JSON by RFC 8259 and survive unchanged, because nobody rewrites them.
///
/// # Errors
/// [`JsonError::Syntax`] or [`JsonError::TooDeep`].
pub fn check(bytes: &[u8]) -> Result<(), JsonError> {
    check_depth(bytes)?;
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(JsonError::Syntax { offset: offset(bytes, &error), reason: reason(&error) }),
    }
}

/// The byte offset of a parser's error (it counts lines and columns from one).
pub fn offset(bytes: &[u8], error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return bytes.len();
    }
    let before: usize = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    (before + error.column().saturating_sub(1)).min(bytes.len())
}

/// The parser's message without its position.
pub fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// Counts brackets outside strings; wrong JSON is left to the parser.
fn check_depth(bytes: &[u8]) -> Result<(), JsonError> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > limits::JSON_DEPTH_MAX {
                    return Err(JsonError::TooDeep { max: limits::JSON_DEPTH_MAX });
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_json_value_is_taken() {
        for text in
            ["0", "null", "\"\"", r#"{"a":1,"a":2}"#, r#""\ud800""#, r#""\u0000""#, " [1] ", "-0.0e+9"]
        {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_the_place() {
        for (text, at) in [("", 0), ("{\"a\":}", 5), ("1 2", 2), ("{\"a\":1", 6), ("{\n\"a\":nul}", 9)] {
            let Err(JsonError::Syntax { offset, .. }) = check(text.as_bytes()) else {
                panic!("{text:?} was taken")
            };
            assert_eq!(offset, at, "{text:?}");
        }
        assert!(check(b"\"\xff\"").is_err());
    }

    #[test]
    fn depth_is_bounded_and_brackets_in_strings_do_not_count() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(check(&nested(128)), Ok(()));
        assert_eq!(check(&nested(129)), Err(JsonError::TooDeep { max: 128 }));
        assert_eq!(check(format!("\"{}\\\"[\"", "[".repeat(500)).as_bytes()), Ok(()));
    }
}
