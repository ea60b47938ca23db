//! Why a request does or does not verify, told to a person.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::check::{Part, Presented, TimeUnit, Timestamp};
use crate::provider::HmacScheme;
use crate::{HmacKey, KeyForm, ProviderSecret, Verified, VerifyError, WebhookRequest, encoding};

/// How much of a body is shown, in bytes before escaping.
const BODY_SHOWN_BYTES: usize = 64;
/// Seconds from here on (the year 5138) are taken for milliseconds in the wrong place.
const LIKELY_MILLISECONDS: i64 = 100_000_000_000;

const WRITING: &str = "writing to a String cannot fail";

/// The text of [`Provider::explain`](crate::Provider::explain).
pub(crate) fn explanation(
    scheme: &impl HmacScheme,
    verdict: &Result<Verified, VerifyError>,
    secrets: &[ProviderSecret],
    request: &WebhookRequest<'_>,
) -> String {
    let mut text = String::new();
    match verdict {
        Ok(verified) => {
            let number = verified.secret_index + 1;
            writeln!(text, "{}: verified with secret {number}", scheme.name()).expect(WRITING);
        }
        Err(error) => writeln!(text, "{}: not verified: {error}", scheme.name()).expect(WRITING),
    }
    match scheme.read(request) {
        Ok(presented) => {
            write_presented(&mut text, &presented, request);
            write_keys(&mut text, scheme.key_form(), &presented, secrets, request);
        }
        Err(_) => write_header_names(&mut text, request),
    }
    text
}

fn write_header_names(text: &mut String, request: &WebhookRequest<'_>) {
    let names: Vec<String> =
        request.headers.names().map(|name| on_one_line(&name.to_ascii_lowercase())).collect();
    if names.is_empty() {
        text.push_str("the request has no headers\n");
    } else {
        writeln!(text, "headers of the request: {}", names.join(", ")).expect(WRITING);
    }
}

fn write_presented(text: &mut String, presented: &Presented<'_>, request: &WebhookRequest<'_>) {
    writeln!(text, "signatures to check: {} ({})", presented.signatures.len(), presented.algorithm.name())
        .expect(WRITING);
    if let Some(timestamp) = presented.timestamp {
        write_timestamp(text, timestamp, request);
    }
    let mut signed = String::new();
    let mut bytes = 0;
    for part in &presented.content {
        match part {
            Part::Text(part) => {
                bytes += part.len();
                signed.push_str(&on_one_line(part));
            }
            Part::Body => {
                bytes += request.body.len();
                signed.push_str(&shortened(request.body));
            }
        }
    }
    writeln!(text, "signed string ({bytes} bytes): {signed}").expect(WRITING);
    let sha256 = encoding::hex(&Sha256::digest(request.body));
    writeln!(text, "body: {} bytes, SHA-256 {sha256}", request.body.len()).expect(WRITING);
}

fn write_timestamp(text: &mut String, timestamp: Timestamp, request: &WebhookRequest<'_>) {
    let age_ms = timestamp.age_ms(request.now_ms);
    let side = if age_ms < 0 { "in the future" } else { "ago" };
    let seconds = age_ms.unsigned_abs() / 1_000;
    let unit = match timestamp.unit {
        TimeUnit::Seconds => "seconds",
        TimeUnit::Milliseconds => "milliseconds",
    };
    let verdict = match timestamp.check(request.now_ms, request.tolerance) {
        Ok(()) => "within",
        Err(_) => "outside",
    };
    let tolerance = request.tolerance.as_secs();
    writeln!(
        text,
        "timestamp: {} ({unit}), {seconds} s {side}, {verdict} the tolerance of {tolerance} s",
        timestamp.value
    )
    .expect(WRITING);
    if timestamp.unit == TimeUnit::Seconds && timestamp.value >= LIKELY_MILLISECONDS {
        text.push_str("  it looks like milliseconds where this scheme has seconds\n");
    }
    if timestamp.unit == TimeUnit::Milliseconds && timestamp.value < LIKELY_MILLISECONDS {
        text.push_str("  it looks like seconds where this scheme has milliseconds\n");
    }
}

fn write_keys(
    text: &mut String,
    wanted: KeyForm,
    presented: &Presented<'_>,
    secrets: &[ProviderSecret],
    request: &WebhookRequest<'_>,
) {
    let bodies = other_bodies(request.body);
    let mut conditions = Vec::new();
    let mut is_matched = false;
    for (index, secret) in secrets.iter().enumerate() {
        let number = index + 1;
        let prefix = if secret.has_prefix() { ", starts with whsec_" } else { "" };
        writeln!(text, "secret {number}: {} characters{prefix}", secret.chars()).expect(WRITING);
        for form in KeyForm::ALL {
            if form == KeyForm::TextAfterPrefix && !secret.has_prefix() {
                continue;
            }
            let mark = if form == wanted { " (the form of this scheme)" } else { "" };
            let description = form.description();
            let key = match secret.key(form) {
                Ok(key) => HmacKey::new(presented.algorithm, &key),
                Err(fault) => {
                    writeln!(text, "  {description}{mark}: not possible: {fault}").expect(WRITING);
                    continue;
                }
            };
            let matches = presented.holds(&key, request.body);
            let answer = if matches { "matches" } else { "no match" };
            writeln!(text, "  {description}{mark}: {answer}").expect(WRITING);
            is_matched |= matches && form == wanted;
            let key_condition = (form != wanted).then(|| form.as_condition());
            if matches && let Some(condition) = key_condition {
                conditions.push(format!("secret {number} matches if {condition}"));
            }
            for (body_condition, body) in &bodies {
                if presented.holds(&key, body) {
                    let also = key_condition.map(|c| format!(" and {c}")).unwrap_or_default();
                    conditions.push(format!("secret {number} matches if {body_condition}{also}"));
                }
            }
        }
    }
    for condition in &conditions {
        writeln!(text, "{condition}").expect(WRITING);
    }
    if !is_matched && conditions.is_empty() && !secrets.is_empty() {
        text.push_str(
            "nothing tried matches: the secret is another one, or the body or what else is signed was changed\n",
        );
    }
}

/// What files, editors and frameworks commonly do to a body on its way, each with the condition under
/// which it would be right.
fn other_bodies(body: &[u8]) -> Vec<(&'static str, Cow<'_, [u8]>)> {
    let mut bodies: Vec<(&'static str, Cow<'_, [u8]>)> = Vec::new();
    match body.strip_suffix(b"\n").map(|rest| rest.strip_suffix(b"\r").unwrap_or(rest)) {
        Some(rest) => bodies.push(("the newline at the end of the body is removed", Cow::Borrowed(rest))),
        None => {
            bodies.push(("a newline is added at the end of the body", Cow::Owned([body, b"\n"].concat())));
        }
    }
    let unix = without_carriage_returns(body);
    if unix != body {
        bodies.push(("the line ends of the body are LF instead of CRLF", Cow::Owned(unix)));
    }
    let compact = without_json_space(body);
    if compact != body {
        bodies.push(("the body is JSON without white space", Cow::Owned(compact)));
    }
    bodies
}

fn without_carriage_returns(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.iter().copied().peekable();
    let mut kept = Vec::with_capacity(body.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\r' || bytes.peek() != Some(&b'\n') {
            kept.push(byte);
        }
    }
    kept
}

/// Drops white space outside of string literals. Parsing and writing anew would also reorder keys.
fn without_json_space(body: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(body.len());
    let mut is_in_string = false;
    let mut is_escaped = false;
    for &byte in body {
        if is_in_string {
            is_in_string = byte != b'"' || is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            kept.push(byte);
        } else if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            is_in_string = byte == b'"';
            kept.push(byte);
        }
    }
    kept
}

/// The start of a body on one line; what is left out is counted.
fn shortened(body: &[u8]) -> String {
    let head = &body[..body.len().min(BODY_SHOWN_BYTES)];
    let mut text = String::new();
    for chunk in head.utf8_chunks() {
        text.push_str(&on_one_line(chunk.valid()));
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect(WRITING);
        }
    }
    if body.len() > head.len() {
        write!(text, "… (and {} bytes more)", body.len() - head.len()).expect(WRITING);
    }
    text
}

/// Escapes what would break the line or steer a terminal, and leaves quotes be: JSON is full of them.
fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => line.push(character),
            _ => line.extend(character.escape_debug()),
        }
    }
    line
}
