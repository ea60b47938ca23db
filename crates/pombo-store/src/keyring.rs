//! Sealing of secrets at rest: XChaCha20-Poly1305, bound to table and row.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use rand::Rng;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use pombo_domain::secret::SecretText;

use crate::error::StoreError;

const VERSION: u8 = 1;
const KEY_ID_LEN: usize = 4;
const NONCE_LEN: usize = 24;
const HEAD_LEN: usize = 1 + KEY_ID_LEN + NONCE_LEN;

/// Which row a sealed value belongs to: a value moved to another row or table does not open.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The table, with the column where a table holds several.
    pub table: &'static str,
    /// The row's key.
    pub row: &'a [u8],
}

/// The keys that seal and open. The first seals; all open, so that a rotation can go through row by row.
///
/// A sealed value is `version (1) ‖ key id (4) ‖ nonce (24) ‖ ciphertext and tag`. The key id is the first
/// four bytes of SHA-256 over the key.
pub struct Keyring {
    keys: Vec<([u8; KEY_ID_LEN], XChaCha20Poly1305)>,
}

impl Keyring {
    /// From the current key.
    pub fn new(current: &[u8; 32]) -> Self {
        Self { keys: vec![entry(current)] }
    }

    /// Adds an older key, which opens but does not seal.
    #[must_use]
    pub fn with_older(mut self, older: &[u8; 32]) -> Self {
        self.keys.push(entry(older));
        self
    }

    /// Seals a text for its row, with a random nonce from `rng`.
    pub fn seal(&self, place: Place<'_>, secret: &SecretText, rng: &mut impl Rng) -> Vec<u8> {
        let (id, cipher) = &self.keys[0];
        let mut nonce = [0; NONCE_LEN];
        rng.fill_bytes(&mut nonce);
        let payload = Payload { msg: secret.expose().as_bytes(), aad: &bound_to(place) };
        let sealed = cipher
            .encrypt(&XNonce::from(nonce), payload)
            .expect("XChaCha20-Poly1305 fails only over 256 GiB");
        let mut out = Vec::with_capacity(HEAD_LEN + sealed.len());
        out.push(VERSION);
        out.extend_from_slice(id);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        out
    }

    /// Opens what [`Keyring::seal`] made for the same row.
    ///
    /// # Errors
    /// [`StoreError::Sealed`]: another key, another row, or changed bytes.
    pub fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<SecretText, StoreError> {
        self.try_open(place, sealed).ok_or(StoreError::Sealed { table: place.table })
    }

    fn try_open(&self, place: Place<'_>, sealed: &[u8]) -> Option<SecretText> {
        let (head, ciphertext) = sealed.split_at_checked(HEAD_LEN)?;
        let (version, rest) = head.split_first()?;
        let (id, nonce) = rest.split_at(KEY_ID_LEN);
        if *version != VERSION {
            return None;
        }
        let (_, cipher) = self.keys.iter().find(|(key_id, _)| key_id == id)?;
        let nonce: [u8; NONCE_LEN] = nonce.try_into().ok()?;
        let payload = Payload { msg: ciphertext, aad: &bound_to(place) };
        let plain = Zeroizing::new(cipher.decrypt(&XNonce::from(nonce), payload).ok()?);
        Some(SecretText::new(String::from_utf8(plain.to_vec()).ok()?))
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}

fn entry(key: &[u8; 32]) -> ([u8; KEY_ID_LEN], XChaCha20Poly1305) {
    let digest = Sha256::digest(key);
    let id = digest[..KEY_ID_LEN].try_into().expect("a digest is longer than an id");
    (id, XChaCha20Poly1305::new(key.into()))
}

/// Length-prefixed, so that no two places read the same.
fn bound_to(place: Place<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(place.table.len() + place.row.len() + 1);
    bytes.push(u8::try_from(place.table.len()).expect("table names are short"));
    bytes.extend_from_slice(place.table.as_bytes());
    bytes.extend_from_slice(place.row);
    bytes
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const PLACE: Place<'_> = Place { table: "secret", row: b"1" };

    fn secret() -> SecretText {
        SecretText::new("whsec_abc".to_owned())
    }

    #[test]
    fn opens_only_in_its_own_row_and_unchanged() {
        let ring = Keyring::new(&[7; 32]);
        let mut sealed = ring.seal(PLACE, &secret(), &mut StdRng::seed_from_u64(1));
        assert_eq!(ring.open(PLACE, &sealed).expect("opens"), secret());
        assert!(ring.open(Place { row: b"2", ..PLACE }, &sealed).is_err());
        assert!(ring.open(Place { table: "secre", row: b"t1" }, &sealed).is_err());
        assert!(!sealed.windows(5).any(|window| window == b"whsec"));
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        assert!(ring.open(PLACE, &sealed).is_err());
        assert!(ring.open(PLACE, &[]).is_err());
    }

    #[test]
    fn older_keys_open_and_the_current_one_seals() {
        let old = Keyring::new(&[7; 32]);
        let sealed = old.seal(PLACE, &secret(), &mut StdRng::seed_from_u64(1));
        let rotated = Keyring::new(&[8; 32]).with_older(&[7; 32]);
        assert_eq!(rotated.open(PLACE, &sealed).expect("opens"), secret());
        assert!(Keyring::new(&[8; 32]).open(PLACE, &sealed).is_err());
        let fresh = rotated.seal(PLACE, &secret(), &mut StdRng::seed_from_u64(2));
        assert!(old.open(PLACE, &fresh).is_err());
    }
}
