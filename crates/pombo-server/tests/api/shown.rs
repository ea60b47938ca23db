//! JSON with everything that differs from run to run replaced, for snapshots.

use pombo_domain::clock::Timestamp;
use serde_json::Value;

/// Replaces ids, times, secrets, ports and measurements.
pub(crate) fn steady(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let steady_field = |(name, value): (&String, &Value)| {
                let is_measured = name.ends_with("Ms") && name != "timeoutMs";
                let value = if is_measured { Value::String("<ms>".to_owned()) } else { steady(value) };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(steady_field).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(steady).collect()),
        Value::String(text) => Value::String(steady_text(text)),
        other => other.clone(),
    }
}

fn steady_text(text: &str) -> String {
    if Timestamp::parse(text).is_ok() {
        return "<time>".to_owned();
    }
    if let Some(rest) = text.strip_prefix("http://127.0.0.1:") {
        return format!("http://127.0.0.1:<port>{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    if text.starts_with("whsec_") {
        return "whsec_<secret>".to_owned();
    }
    let words = text.split(' ').map(|word| match word.split_once('_') {
        Some((prefix, rest))
            if ["evt", "ep", "dlv", "key", "aud", "ten"].contains(&prefix) && rest.len() >= 26 =>
        {
            format!("{prefix}_<id>{}", &rest[26..])
        }
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
