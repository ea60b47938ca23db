//! The signing secret of an endpoint.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::SecretError;
use crate::encoding::{self, KeyPadding};

/// What every signing secret starts with.
pub(crate) const PREFIX: &str = "whsec_";

/// Fewest bytes of a signing secret, decoded (Standard Webhooks, "Signature scheme": 192 bits).
pub const SECRET_BYTES_MIN: usize = 24;
/// Most bytes of a signing secret, decoded (Standard Webhooks, "Signature scheme": 512 bits).
pub const SECRET_BYTES_MAX: usize = 64;

/// Longest base64 text that can decode to [`SECRET_BYTES_MAX`] bytes.
const BASE64_CHARS_MAX: usize = SECRET_BYTES_MAX.div_ceil(3) * 4;

/// The secret that signs what is sent to one endpoint: `whsec_` and 24 to 64 bytes in standard base64.
///
/// It is wiped from memory when dropped, prints as `SigningSecret(..)` and has no `Display`, so that no
/// log line or template can show it by accident; [`as_shown`](Self::as_shown) is the one way out.
///
/// Source: Standard Webhooks, "Signature scheme", row "secret serialization".
#[derive(Clone)]
pub struct SigningSecret {
    shown: Zeroizing<String>,
    key: Zeroizing<Vec<u8>>,
}

impl SigningSecret {
    /// Reads a secret as a person or a file gives it, strictly: the prefix, the standard alphabet,
    /// padding, no white space around it.
    ///
    /// # Errors
    /// [`SecretError`] names what is wrong with the text and never repeats it.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError::MissingPrefix)?;
        if encoded.len() > BASE64_CHARS_MAX {
            return Err(SecretError::TooLong { bytes: encoded.len() / 4 * 3 });
        }
        let key = encoding::base64_key(encoded, KeyPadding::Needed)?;
        match key.len() {
            bytes if bytes < SECRET_BYTES_MIN => Err(SecretError::TooShort { bytes }),
            bytes if bytes > SECRET_BYTES_MAX => Err(SecretError::TooLong { bytes }),
            _ => Ok(Self { shown: Zeroizing::new(text.to_owned()), key }),
        }
    }

    /// Makes a new secret of 32 bytes, which must come from a cryptographic random source.
    pub fn from_random(random: [u8; 32]) -> Self {
        let random = Zeroizing::new(random);
        let encoded = Zeroizing::new(encoding::base64(random.as_slice()));
        let mut shown = Zeroizing::new(String::with_capacity(PREFIX.len() + encoded.len()));
        shown.push_str(PREFIX);
        shown.push_str(&encoded);
        Self { shown, key: Zeroizing::new(random.to_vec()) }
    }

    /// The text given to the receiver, `whsec_…`. Show it once; never log it.
    pub fn as_shown(&self) -> &str {
        &self.shown
    }

    /// The decoded bytes, the HMAC key of Standard Webhooks.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

impl FromStr for SigningSecret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> SecretError {
        SigningSecret::parse(text).expect_err("this text is no signing secret")
    }

    #[test]
    fn a_generated_secret_reads_back_as_itself() {
        let secret = SigningSecret::from_random([7; 32]);
        assert_eq!(secret.as_shown(), "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        let again = SigningSecret::parse(secret.as_shown()).expect("what is shown can be read");
        assert_eq!(again.key(), [7; 32]);
        assert_eq!(again.as_shown(), secret.as_shown());
    }

    #[test]
    fn both_ends_of_the_length_range_are_allowed() {
        for bytes in [SECRET_BYTES_MIN, SECRET_BYTES_MAX] {
            let text = format!("whsec_{}", encoding::base64(&vec![1; bytes]));
            assert_eq!(SigningSecret::parse(&text).expect("length in range").key().len(), bytes);
        }
        for (bytes, want) in [
            (SECRET_BYTES_MIN - 1, SecretError::TooShort { bytes: 23 }),
            (SECRET_BYTES_MAX + 1, SecretError::TooLong { bytes: 65 }),
            (3_000, SecretError::TooLong { bytes: 3_000 }),
        ] {
            assert_eq!(fault(&format!("whsec_{}", encoding::base64(&vec![1; bytes]))), want);
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let good = "C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        assert_eq!(fault(""), SecretError::Empty);
        assert_eq!(fault("whsec_"), SecretError::Empty);
        assert_eq!(fault(good), SecretError::MissingPrefix);
        assert_eq!(fault(&format!("WHSEC_{good}")), SecretError::MissingPrefix);
        assert_eq!(fault(&format!("whsec_{good}\n")), SecretError::WhiteSpace { at: 32 });
        assert_eq!(fault(&format!(" whsec_{good}")), SecretError::MissingPrefix);
        assert_eq!(
            fault(&format!("whsec_{}", good.replace('+', "-"))),
            SecretError::UrlSafeAlphabet { at: 19 }
        );
        assert_eq!(fault(&format!("whsec_{}", good.replace('+', "*"))), SecretError::NotBase64 { at: 19 });
        assert_eq!(fault(&format!("whsec_{}", &good[..31])), SecretError::WrongPadding);
        assert_eq!(fault(&format!("whsec_{good}=")), SecretError::WrongPadding);
        assert_eq!(fault("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="), SecretError::NotCanonical);
    }

    #[test]
    fn a_secret_never_prints_itself() {
        let secret = SigningSecret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").expect("good");
        assert_eq!(format!("{secret:?}"), "SigningSecret(..)");
    }
}
