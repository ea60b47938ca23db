//! Standard Webhooks, version `v1`: HMAC-SHA256.
//!
//! Three headers: [`ID_HEADER`], [`TIMESTAMP_HEADER`] (Unix seconds) and [`SIGNATURE_HEADER`], a list of
//! `v1,<base64>` parted by spaces. Signed is `<id>.<timestamp>.<body>`; the key is what the base64 of the
//! secret decodes to. During a rotation both secrets sign.
//!
//! Source: Standard Webhooks 1.0.0, "Signature scheme" and "Webhook headers".

use std::borrow::Cow;

use crate::check::{Part, Presented, SIGNATURES_MAX, TimeUnit, Timestamp};
use crate::error::HeaderProblem;
use crate::{
    Algorithm, HeaderFault, HeaderList, HmacKey, Signer, SigningSecret, Verified, VerifyError,
    WebhookRequest, encoding,
};

/// Header with the id of the webhook, the same on every attempt.
pub const ID_HEADER: &str = "webhook-id";
/// Header with the time of the attempt, in Unix seconds.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// Header with the signatures.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// The same three under the name they had before the standard.
const SVIX_HEADERS: [&str; 3] = ["svix-id", "svix-timestamp", "svix-signature"];

/// The value of [`SIGNATURE_HEADER`]: `v1,<base64>` for each secret, parted by one space.
///
/// Give the current secret first, then the older one during a rotation; they stand in the same order. No
/// secrets, no signatures: the value is then empty and must not be sent. `id` must not contain a full stop.
/// For the hot path see [`sign_with`].
pub fn sign(secrets: &[&SigningSecret], id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
    let keys: Vec<HmacKey> = secrets.iter().map(|s| HmacKey::new(Algorithm::Sha256, s.key())).collect();
    sign_with_keys(keys.iter(), id, timestamp_seconds, body)
}

/// As [`sign`], with the keyed states already computed.
pub fn sign_with(signers: &[&Signer], id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
    sign_with_keys(signers.iter().map(|signer| signer.standard()), id, timestamp_seconds, body)
}

/// The three headers of one attempt, names in lower case.
///
/// The arguments are those of [`sign`].
pub fn headers(
    signers: &[&Signer],
    id: &str,
    timestamp_seconds: i64,
    body: &[u8],
) -> [(&'static str, String); 3] {
    [
        (ID_HEADER, id.to_owned()),
        (TIMESTAMP_HEADER, timestamp_seconds.to_string()),
        (SIGNATURE_HEADER, sign_with(signers, id, timestamp_seconds, body)),
    ]
}

/// Whether a request was signed by one of the secrets, lately.
///
/// Every `v1` signature is compared with every secret, in constant time; other versions are passed over.
/// The header may stand more than once or be joined by commas. `svix-id`, `svix-timestamp` and
/// `svix-signature` are read where there is no `webhook-signature`. An id with a full stop is refused.
///
/// # Errors
/// [`VerifyError`], in the order given there.
pub fn verify(signers: &[&Signer], request: &WebhookRequest<'_>) -> Result<Verified, VerifyError> {
    if signers.is_empty() {
        return Err(VerifyError::NoSecret);
    }
    read(&request.headers)?.verify(signers.iter().map(|signer| signer.standard()), request)
}

pub(crate) fn sign_with_keys<'k>(
    keys: impl Iterator<Item = &'k HmacKey>,
    id: &str,
    timestamp_seconds: i64,
    body: &[u8],
) -> String {
    let timestamp = timestamp_seconds.to_string();
    let mut value = String::new();
    for key in keys {
        if !value.is_empty() {
            value.push(' ');
        }
        let tag = key.tag(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
        value.push_str("v1,");
        value.push_str(&encoding::base64(tag.as_bytes()));
    }
    value
}

/// What the headers say was signed.
pub(crate) fn read<'a>(headers: &HeaderList<'a>) -> Result<Presented<'a>, HeaderProblem> {
    let is_svix = !headers.has(SIGNATURE_HEADER) && headers.has(SVIX_HEADERS[2]);
    let [id_header, timestamp_header, signature_header] =
        if is_svix { SVIX_HEADERS } else { [ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER] };

    let signature_values = headers.needed_all(signature_header)?;
    let id = signable_id(id_header, headers.needed(id_header)?)?;
    let timestamp_text = headers.needed(timestamp_header)?;
    let timestamp = Timestamp::parse(timestamp_text, TimeUnit::Seconds)
        .map_err(|fault| HeaderProblem::malformed(timestamp_header, fault))?;
    let signatures = v1_signatures(&signature_values)
        .map_err(|fault| HeaderProblem::malformed(signature_header, fault))?;
    let dot = || Part::Text(Cow::Borrowed("."));
    Ok(Presented {
        algorithm: Algorithm::Sha256,
        content: vec![
            Part::Text(Cow::Borrowed(id)),
            dot(),
            // The text as it came, not the number written anew: this is what the sender signed.
            Part::Text(Cow::Borrowed(timestamp_text)),
            dot(),
            Part::Body,
        ],
        signatures,
        timestamp: Some(timestamp),
        id: Some(id),
        is_id_signed: true,
    })
}

/// With a full stop in the id, `a.1` + `2` + `b` and `a` + `1` + `2.b` would be the same signed string.
pub(crate) fn signable_id<'a>(header: &'static str, id: &'a str) -> Result<&'a str, HeaderProblem> {
    if id.contains('.') { Err(HeaderProblem::malformed(header, HeaderFault::FullStop)) } else { Ok(id) }
}

/// The decoded `v1` entries. A proxy may have joined repeated headers with a comma, which also stands
/// between version and signature; neither contains a comma itself, so the parts of an entry pair up.
fn v1_signatures(values: &[&str]) -> Result<Vec<Vec<u8>>, HeaderFault> {
    let mut signatures = Vec::new();
    for entry in values.iter().flat_map(|value| value.split_ascii_whitespace()) {
        let mut parts = entry.split(',');
        while let (Some(version), Some(signature)) = (parts.next(), parts.next()) {
            if version != "v1" {
                continue;
            }
            let Some(bytes) = encoding::base64_decoded(signature) else { continue };
            if bytes.len() != Algorithm::Sha256.tag_bytes() {
                continue;
            }
            if signatures.len() == SIGNATURES_MAX {
                return Err(HeaderFault::TooManySignatures);
            }
            signatures.push(bytes);
        }
    }
    if signatures.is_empty() { Err(HeaderFault::NoSignature) } else { Ok(signatures) }
}
