//! A secret as a provider shows it, and the ways to make a key of it.

use std::fmt;

use zeroize::Zeroizing;

use crate::encoding::{self, KeyPadding};
use crate::secret::PREFIX;
use crate::{SecretError, SigningSecret};

/// A secret shared with a provider, in whatever form its page shows it.
///
/// Unlike [`SigningSecret`] nothing is asked of it until a scheme makes a key of it. It is wiped when
/// dropped and prints as `ProviderSecret(..)`.
#[derive(Clone)]
pub struct ProviderSecret(Zeroizing<String>);

impl ProviderSecret {
    /// Takes the text as shown by the provider.
    pub fn new(shown: impl Into<String>) -> Self {
        Self(Zeroizing::new(shown.into()))
    }

    /// The key bytes by one reading of the text.
    ///
    /// # Errors
    /// [`SecretError`] if the text has not that form or gives no bytes: with an empty key anybody could sign.
    pub fn key(&self, form: KeyForm) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let whole = self.0.as_str();
        let without_prefix = whole.strip_prefix(PREFIX).unwrap_or(whole);
        let key = match form {
            KeyForm::Text => Zeroizing::new(whole.as_bytes().to_vec()),
            KeyForm::TextAfterPrefix => Zeroizing::new(without_prefix.as_bytes().to_vec()),
            KeyForm::Base64 => encoding::base64_key(without_prefix, KeyPadding::Optional)?,
            KeyForm::Hex => Zeroizing::new(encoding::hex_decoded(without_prefix).ok_or(SecretError::NotHex)?),
        };
        if key.is_empty() { Err(SecretError::Empty) } else { Ok(key) }
    }

    pub(crate) fn has_prefix(&self) -> bool {
        self.0.starts_with(PREFIX)
    }

    /// Length of the text in characters.
    pub(crate) fn chars(&self) -> usize {
        self.0.chars().count()
    }
}

impl From<&SigningSecret> for ProviderSecret {
    fn from(secret: &SigningSecret) -> Self {
        Self::new(secret.as_shown())
    }
}

impl fmt::Debug for ProviderSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderSecret(..)")
    }
}

/// How the text of a secret becomes the key of an HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyForm {
    /// The UTF-8 bytes of the whole text, `whsec_` included where it is there.
    Text,
    /// The UTF-8 bytes of what follows `whsec_`, undecoded.
    TextAfterPrefix,
    /// Standard base64, decoded, after dropping `whsec_` where it is there; padding may be missing.
    Base64,
    /// Hexadecimal digits, decoded, after dropping `whsec_` where it is there.
    Hex,
}

impl KeyForm {
    pub(crate) const ALL: [Self; 4] = [Self::Text, Self::TextAfterPrefix, Self::Base64, Self::Hex];

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Text => "UTF-8 bytes of the whole text",
            Self::TextAfterPrefix => "UTF-8 bytes after `whsec_`",
            Self::Base64 => "base64, decoded",
            Self::Hex => "hexadecimal, decoded",
        }
    }

    /// Ends the sentence "matches if …" for a scheme that wants another form.
    pub(crate) fn as_condition(self) -> &'static str {
        match self {
            Self::Text => "the secret is used without base64 decoding, as the UTF-8 bytes of the whole text",
            Self::TextAfterPrefix => "`whsec_` is dropped and the rest used without base64 decoding",
            Self::Base64 => "the secret is decoded from base64 (what follows `whsec_`)",
            Self::Hex => "the secret is decoded from hexadecimal",
        }
    }
}
