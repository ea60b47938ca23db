//! HMAC with the keyed state computed once.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroize;

/// The hash under an HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC-SHA1, 20 bytes. Only for providers that sign with nothing better.
    Sha1,
    /// HMAC-SHA256, 32 bytes.
    Sha256,
    /// HMAC-SHA512, 64 bytes.
    Sha512,
}

impl Algorithm {
    /// How the algorithm is written in a scheme: `hmac-sha1`, `hmac-sha256`, `hmac-sha512`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "hmac-sha1",
            Self::Sha256 => "hmac-sha256",
            Self::Sha512 => "hmac-sha512",
        }
    }

    /// Length of a signature in bytes: 20, 32 or 64.
    pub fn tag_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// An HMAC key whose two padded key blocks are already hashed.
///
/// Each signature starts from a clone of that state, so a message costs its own blocks and two more, and
/// the key itself need not be kept. The state is as good as the key; it is wiped when dropped and prints
/// as `HmacKey(..)`.
///
/// Source: RFC 2104, section 4 (the precomputation).
#[derive(Clone)]
pub struct HmacKey(State);

#[derive(Clone)]
enum State {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha512(Hmac<Sha512>),
}

impl HmacKey {
    /// Prepares a key of any length (RFC 2104 hashes those longer than a block).
    #[expect(clippy::missing_panics_doc, reason = "HMAC takes a key of any length, so it cannot panic")]
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Self {
        const ANY_LENGTH: &str = "HMAC takes a key of any length";
        Self(match algorithm {
            Algorithm::Sha1 => State::Sha1(Hmac::new_from_slice(key).expect(ANY_LENGTH)),
            Algorithm::Sha256 => State::Sha256(Hmac::new_from_slice(key).expect(ANY_LENGTH)),
            Algorithm::Sha512 => State::Sha512(Hmac::new_from_slice(key).expect(ANY_LENGTH)),
        })
    }

    /// The signature of the parts put end to end.
    pub fn tag(&self, parts: &[&[u8]]) -> Tag {
        match &self.0 {
            State::Sha1(state) => finished(state.clone(), parts),
            State::Sha256(state) => finished(state.clone(), parts),
            State::Sha512(state) => finished(state.clone(), parts),
        }
    }
}

fn finished(mut state: impl Mac, parts: &[&[u8]]) -> Tag {
    for part in parts {
        state.update(part);
    }
    Tag::new(&state.finalize().into_bytes())
}

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(..)")
    }
}

/// One computed signature.
///
/// It has no `PartialEq`: the only comparison takes the same time wherever the bytes differ. It prints as
/// `Tag(..)`, for a right signature of a forged message must not reach a log.
pub struct Tag {
    bytes: [u8; 64],
    length: usize,
}

impl Tag {
    fn new(from: &[u8]) -> Self {
        let mut bytes = [0; 64];
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, length: from.len() }
    }

    /// The bytes: 20, 32 or 64 by the algorithm.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether a presented signature is this one, in a time that depends on its length alone.
    pub fn matches(&self, presented: &[u8]) -> Choice {
        self.as_bytes().ct_eq(presented)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tag(..)")
    }
}
