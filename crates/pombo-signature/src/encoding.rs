//! Hexadecimal and base64 as signatures and keys use them.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, Engine};
use base64::{DecodeError, alphabet};
use zeroize::Zeroizing;

use crate::SecretError;

/// The standard alphabet with or without `=`: how providers show their keys.
const PADDING_OPTIONAL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Canonical base64 only (padding and trailing bits), so that one signature has one spelling.
pub(crate) fn base64_decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// The key bytes of a base64 secret.
pub(crate) fn base64_key(text: &str, padding: KeyPadding) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    if text.is_empty() {
        return Err(SecretError::Empty);
    }
    // The exact capacity comes first: growing a buffer would leave a copy of the key behind.
    let mut key = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let decoded = match padding {
        KeyPadding::Needed => decode_into(&STANDARD, text, &mut key),
        KeyPadding::Optional => decode_into(&PADDING_OPTIONAL, text, &mut key),
    };
    match decoded {
        Ok(bytes) => {
            key.truncate(bytes);
            Ok(key)
        }
        Err(error) => Err(named_fault(text, &error)),
    }
}

/// Whether the `=` at the end of a base64 key must be there.
#[derive(Clone, Copy)]
pub(crate) enum KeyPadding {
    Needed,
    Optional,
}

fn decode_into(engine: &impl Engine, text: &str, key: &mut [u8]) -> Result<usize, DecodeError> {
    engine.decode_slice(text, key).map_err(|error| match error {
        base64::DecodeSliceError::DecodeError(error) => error,
        // The estimate is an upper bound, so a text that outgrows it has no valid length.
        base64::DecodeSliceError::OutputSliceTooSmall => DecodeError::InvalidPadding,
    })
}

fn named_fault(text: &str, error: &DecodeError) -> SecretError {
    // The decoder reports structure before characters; a person wants the odd character first.
    if let Some(at) = text.bytes().position(|byte| byte.is_ascii_whitespace()) {
        return SecretError::WhiteSpace { at };
    }
    if let Some(at) = text.bytes().position(|byte| byte == b'-' || byte == b'_') {
        return SecretError::UrlSafeAlphabet { at };
    }
    match error {
        DecodeError::InvalidByte(_, b'=') | DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => {
            SecretError::WrongPadding
        }
        DecodeError::InvalidByte(at, _) => SecretError::NotBase64 { at: *at },
        DecodeError::InvalidLastSymbol { .. } => SecretError::NotCanonical,
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    text
}

/// The bytes of hexadecimal text in either case; `None` for an odd length or another character.
pub(crate) fn hex_decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for pair in text.chunks_exact(2) {
        bytes.push(hex_digit(pair[0])? << 4 | hex_digit(pair[1])?);
    }
    Some(bytes)
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
