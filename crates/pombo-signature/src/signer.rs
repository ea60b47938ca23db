//! A signing secret made ready for the hot path.

use std::fmt;

use crate::{Algorithm, HmacKey, SigningSecret};

/// The keyed states of one [`SigningSecret`] for both header styles.
///
/// Build it once per secret and keep it: each signature then costs a clone of one state, the hash of the
/// message and a final block. It cannot give the secret back. It prints as `Signer(..)`.
#[derive(Clone)]
pub struct Signer {
    standard: HmacKey,
    x_webhook: HmacKey,
}

impl Signer {
    /// Computes the keyed states.
    pub fn new(secret: &SigningSecret) -> Self {
        Self {
            standard: HmacKey::new(Algorithm::Sha256, secret.key()),
            x_webhook: HmacKey::new(Algorithm::Sha256, secret.as_shown().as_bytes()),
        }
    }

    /// Keyed with the decoded bytes.
    pub(crate) fn standard(&self) -> &HmacKey {
        &self.standard
    }

    /// Keyed with the UTF-8 bytes of the secret as shown.
    pub(crate) fn x_webhook(&self) -> &HmacKey {
        &self.x_webhook
    }
}

impl From<&SigningSecret> for Signer {
    fn from(secret: &SigningSecret) -> Self {
        Self::new(secret)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(..)")
    }
}
