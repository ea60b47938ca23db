//! What can be wrong with a secret, a request to sign, or a signed request.

use std::time::Duration;

/// A secret that cannot be used. The messages name what is wrong and where, never the secret itself.
///
/// Positions count bytes from 0 in the text after `whsec_`, or in the whole text where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Nothing was given, or nothing follows the prefix.
    #[error("the secret is empty")]
    Empty,
    /// A signing secret must start with `whsec_`.
    #[error("a signing secret starts with `whsec_`")]
    MissingPrefix,
    /// A space, tab or line break: usually a newline copied along with the secret.
    #[error("the secret has white space at position {at}")]
    WhiteSpace {
        /// Where the first one stands.
        at: usize,
    },
    /// A `-` or `_`: the URL-safe alphabet, where the standard one (`+` and `/`) is meant.
    #[error(
        "the secret uses the URL-safe base64 alphabet at position {at}; the standard one has `+` and `/`"
    )]
    UrlSafeAlphabet {
        /// Where the first one stands.
        at: usize,
    },
    /// A character that no base64 alphabet has.
    #[error("the secret is not base64 at position {at}")]
    NotBase64 {
        /// Where the first one stands.
        at: usize,
    },
    /// The `=` at the end are missing, too many, or the length is impossible.
    #[error("the base64 of the secret is cut off or wrongly padded with `=`")]
    WrongPadding,
    /// The last character carries bits that belong to no byte: the text was cut or mistyped.
    #[error("the last base64 character of the secret has bits left over; the text was cut or mistyped")]
    NotCanonical,
    /// Fewer than [`SECRET_BYTES_MIN`](crate::SECRET_BYTES_MIN) bytes once decoded.
    #[error("the secret decodes to {bytes} bytes; at least 24 are needed")]
    TooShort {
        /// Decoded length in bytes.
        bytes: usize,
    },
    /// More than [`SECRET_BYTES_MAX`](crate::SECRET_BYTES_MAX) bytes once decoded.
    #[error("the secret decodes to {bytes} bytes; at most 64 are allowed")]
    TooLong {
        /// Decoded length in bytes, estimated from the length of the text when that alone is too long.
        bytes: usize,
    },
    /// The scheme wants a key in hexadecimal digits, an even number of them.
    #[error("the secret is not hexadecimal")]
    NotHex,
}

/// What is wrong with the value of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// Not UTF-8 text.
    #[error("it is not text")]
    NotText,
    /// The header or a part of it is there but empty.
    #[error("it is empty")]
    Empty,
    /// A timestamp that is not 1 to 18 decimal digits.
    #[error("it is not a timestamp in decimal digits")]
    NotATimestamp,
    /// An id with a full stop, which would let the borders of the signed string be moved (Standard
    /// Webhooks, "Signature scheme").
    #[error("an id must not contain a full stop")]
    FullStop,
    /// There is no `t=` in a header that carries its own time.
    #[error("it has no `t=` timestamp")]
    NoTimestamp,
    /// No signature of a kind and shape this scheme can check.
    #[error("it holds no well-formed signature of this scheme")]
    NoSignature,
    /// More signatures than any rotation needs.
    #[error("it holds more than 32 signatures")]
    TooManySignatures,
    /// It stands more than once, with different values, where only one can be meant.
    #[error("it is given more than once with different values")]
    Repeated,
    /// It says another time than the signed `t=`.
    #[error("it differs from the signed timestamp")]
    Disagrees,
}

/// Why a request was not accepted.
///
/// The order of the checks is: secrets, headers, signature, time. A request is therefore called too old
/// or too new only if its signature is right, so such an answer speaks of clocks or replays, not forgery.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A header that the scheme needs is not there.
    #[error("header `{name}` is missing")]
    MissingHeader {
        /// Its name in lower case.
        name: String,
    },
    /// A header is there and cannot be understood.
    #[error("header `{name}` is malformed: {fault}")]
    MalformedHeader {
        /// Its name in lower case.
        name: String,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// No signature in the request belongs to any of the secrets.
    #[error("no signature matches the body and the secret")]
    NoMatch,
    /// The signature is right, but the request is older than the tolerance.
    #[error("the signature is right but its timestamp is {} s in the past", age.as_secs())]
    TimestampTooOld {
        /// How long before now it was signed.
        age: Duration,
    },
    /// The signature is right, but it comes from further in the future than the tolerance.
    #[error("the signature is right but its timestamp is {} s in the future", ahead.as_secs())]
    TimestampTooNew {
        /// How long after now it claims to be signed.
        ahead: Duration,
    },
    /// There was no secret to verify with.
    #[error("no secret was given")]
    NoSecret,
    /// A secret has not the form that the scheme needs.
    #[error("secret number {number} cannot be used: {fault}")]
    Secret {
        /// Which one, counted from 1 in the order given.
        number: usize,
        /// What is wrong with it.
        #[source]
        fault: SecretError,
    },
}

/// Why a request was not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// There was no secret to sign with.
    #[error("no secret was given")]
    NoSecret,
    /// A secret has not the form that the scheme needs.
    #[error("secret number {number} cannot be used: {fault}")]
    Secret {
        /// Which one, counted from 1 in the order given.
        number: usize,
        /// What is wrong with it.
        #[source]
        fault: SecretError,
    },
    /// The scheme signs a header that the request does not have, for instance the id.
    #[error("header `{name}` is signed by this scheme and must be given")]
    MissingHeader {
        /// Its name in lower case.
        name: String,
    },
    /// A header that is to be signed cannot be.
    #[error("header `{name}` cannot be signed: {fault}")]
    MalformedHeader {
        /// Its name in lower case.
        name: String,
        /// What is wrong with it.
        fault: HeaderFault,
    },
}

/// A header that cannot be used, whether to sign or to verify.
#[derive(Debug)]
pub(crate) struct HeaderProblem {
    name: String,
    /// `None` if the header is not there.
    fault: Option<HeaderFault>,
}

impl HeaderProblem {
    pub(crate) fn missing(name: &str) -> Self {
        Self { name: name.to_ascii_lowercase(), fault: None }
    }

    pub(crate) fn malformed(name: &str, fault: HeaderFault) -> Self {
        Self { name: name.to_ascii_lowercase(), fault: Some(fault) }
    }
}

impl From<HeaderProblem> for VerifyError {
    fn from(HeaderProblem { name, fault }: HeaderProblem) -> Self {
        match fault {
            None => Self::MissingHeader { name },
            Some(fault) => Self::MalformedHeader { name, fault },
        }
    }
}

impl From<HeaderProblem> for SignError {
    fn from(HeaderProblem { name, fault }: HeaderProblem) -> Self {
        match fault {
            None => Self::MissingHeader { name },
            Some(fault) => Self::MalformedHeader { name, fault },
        }
    }
}
