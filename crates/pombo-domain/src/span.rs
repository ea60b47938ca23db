//! Lengths of time as people write them: `<int>(ms|s|m|h|d)`.

use std::time::Duration;

/// A text is not a length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a whole number followed by ms, s, m, h or d (such as 30s)")]
pub struct SpanError;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];

/// Reads `30s`, `256m`, `7d`.
///
/// # Errors
/// Another form, or a number that does not fit.
pub fn parse(text: &str) -> Result<Duration, SpanError> {
    let (unit, millis) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or(SpanError)?;
    let digits = &text[..text.len() - unit.len()];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SpanError);
    }
    let count: u64 = digits.parse().map_err(|_| SpanError)?;
    count.checked_mul(*millis).map(Duration::from_millis).ok_or(SpanError)
}

/// Writes a length of time with the largest unit that loses nothing; below a millisecond is cut.
pub fn show(span: Duration) -> String {
    let millis = span.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = UNITS[1..]
        .iter()
        .find(|(_, size)| millis.is_multiple_of(u128::from(*size)))
        .copied()
        .unwrap_or(("ms", 1));
    format!("{}{unit}", millis / u128::from(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        for (text, millis) in
            [("0s", 0), ("250ms", 250), ("30s", 30_000), ("10m", 600_000), ("6h", 21_600_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)));
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
        assert_eq!(show(Duration::from_secs(86_400)), "1d");
    }

    #[test]
    fn other_forms_are_refused() {
        for text in
            ["", "s", "-1s", "1.5h", "1 s", "+1s", "99999999999999999999s", "300000000000000000d", "1w"]
        {
            assert_eq!(parse(text), Err(SpanError), "{text:?}");
        }
    }
}
