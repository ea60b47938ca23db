//! The `x-webhook` style: a time in milliseconds and hexadecimal signatures in one header.
//!
//! [`SIGNATURE_HEADER`] is `t=<ms>,v1=<64 lower-case hexadecimal digits>`, HMAC-SHA256 over
//! `<ms>.<body>`. The key is the UTF-8 bytes of the whole secret as shown, `whsec_` included; nothing is
//! decoded. [`TIMESTAMP_HEADER`] repeats the time and [`ID_HEADER`] carries the event id; neither of the
//! two headers is signed.

use std::borrow::Cow;

use crate::check::{Part, Presented, SIGNATURES_MAX, TimeUnit, Timestamp};
use crate::error::HeaderProblem;
use crate::{
    Algorithm, HeaderFault, HeaderList, HmacKey, Signer, SigningSecret, Verified, VerifyError,
    WebhookRequest, encoding,
};

/// Header with the event id, the same on every attempt. Not signed.
pub const ID_HEADER: &str = "x-webhook-id";
/// Header with the time of the attempt in Unix milliseconds, the same as `t`.
pub const TIMESTAMP_HEADER: &str = "x-webhook-timestamp";
/// Header with the time and the signatures.
pub const SIGNATURE_HEADER: &str = "x-webhook-signature";

/// The value of [`SIGNATURE_HEADER`]: `t=<ms>` and a `v1=<hex>` for each secret, parted by commas.
///
/// Give the current secret first, then the older one during a rotation, as for
/// [`standard::sign`](crate::standard::sign). Here the **oldest** stands first in the value: naive
/// receivers read only the first `v1=`, and they still hold the old secret. No secrets, no signatures:
/// the value then must not be sent.
pub fn sign(secrets: &[&SigningSecret], timestamp_ms: i64, body: &[u8]) -> String {
    let keys: Vec<HmacKey> =
        secrets.iter().map(|s| HmacKey::new(Algorithm::Sha256, s.as_shown().as_bytes())).collect();
    sign_with_keys(keys.iter(), timestamp_ms, body)
}

/// As [`sign`], with the keyed states already computed.
pub fn sign_with(signers: &[&Signer], timestamp_ms: i64, body: &[u8]) -> String {
    sign_with_keys(signers.iter().map(|signer| signer.x_webhook()), timestamp_ms, body)
}

/// The three headers of one attempt, names in lower case. `id` is the event id.
///
/// The other arguments are those of [`sign`].
pub fn headers(signers: &[&Signer], id: &str, timestamp_ms: i64, body: &[u8]) -> [(&'static str, String); 3] {
    [
        (ID_HEADER, id.to_owned()),
        (TIMESTAMP_HEADER, timestamp_ms.to_string()),
        (SIGNATURE_HEADER, sign_with(signers, timestamp_ms, body)),
    ]
}

/// Whether a request was signed by one of the secrets, lately.
///
/// Every `v1` is compared with every secret, in constant time; other keys such as `v0` are passed over.
/// The header may stand more than once or be joined by commas, if the times agree. Where
/// [`TIMESTAMP_HEADER`] is there, it must say the same time as `t`, because receivers may read either.
///
/// # Errors
/// [`VerifyError`], in the order given there.
pub fn verify(signers: &[&Signer], request: &WebhookRequest<'_>) -> Result<Verified, VerifyError> {
    if signers.is_empty() {
        return Err(VerifyError::NoSecret);
    }
    read(&request.headers)?.verify(signers.iter().map(|signer| signer.x_webhook()), request)
}

pub(crate) fn sign_with_keys<'k>(
    keys: impl DoubleEndedIterator<Item = &'k HmacKey>,
    timestamp_ms: i64,
    body: &[u8],
) -> String {
    let timestamp = timestamp_ms.to_string();
    let mut value = format!("t={timestamp}");
    for key in keys.rev() {
        let tag = key.tag(&[timestamp.as_bytes(), b".", body]);
        value.push_str(",v1=");
        value.push_str(&encoding::hex(tag.as_bytes()));
    }
    value
}

/// What the headers say was signed.
pub(crate) fn read<'a>(headers: &HeaderList<'a>) -> Result<Presented<'a>, HeaderProblem> {
    let malformed = |fault| HeaderProblem::malformed(SIGNATURE_HEADER, fault);
    let (timestamp_text, signatures) = entries(&headers.needed_all(SIGNATURE_HEADER)?).map_err(malformed)?;
    let timestamp = Timestamp::parse(timestamp_text, TimeUnit::Milliseconds).map_err(malformed)?;
    if headers.one(TIMESTAMP_HEADER)?.is_some_and(|repeated| repeated != timestamp_text) {
        return Err(HeaderProblem::malformed(TIMESTAMP_HEADER, HeaderFault::Disagrees));
    }
    Ok(Presented {
        algorithm: Algorithm::Sha256,
        content: vec![Part::Text(Cow::Borrowed(timestamp_text)), Part::Text(Cow::Borrowed(".")), Part::Body],
        signatures,
        timestamp: Some(timestamp),
        id: headers.one(ID_HEADER)?,
        is_id_signed: false,
    })
}

/// The text after `t=` and the decoded `v1=` of every value.
fn entries<'a>(values: &[&'a str]) -> Result<(&'a str, Vec<Vec<u8>>), HeaderFault> {
    let mut timestamp = None;
    let mut signatures = Vec::new();
    for entry in values.iter().flat_map(|value| value.split(',')) {
        match entry.trim_ascii().split_once('=') {
            Some(("t", text)) if timestamp.is_some_and(|earlier| earlier != text) => {
                return Err(HeaderFault::Repeated);
            }
            Some(("t", text)) => timestamp = Some(text),
            Some(("v1", _)) if signatures.len() == SIGNATURES_MAX => {
                return Err(HeaderFault::TooManySignatures);
            }
            Some(("v1", text)) => signatures.extend(lower_hex(text)),
            _ => {}
        }
    }
    let timestamp = timestamp.ok_or(HeaderFault::NoTimestamp)?;
    if signatures.is_empty() { Err(HeaderFault::NoSignature) } else { Ok((timestamp, signatures)) }
}

/// Only the lower case that the scheme writes, so that one signature has one spelling.
fn lower_hex(text: &str) -> Option<Vec<u8>> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    encoding::hex_decoded(text).filter(|bytes| bytes.len() == Algorithm::Sha256.tag_bytes())
}
