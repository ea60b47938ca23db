//! A scheme described by one line of text, for a sender that has no file here.

use std::borrow::Cow;

use crate::check::{Part, Presented, SIGNATURES_MAX, TimeUnit, Timestamp, tag};
use crate::error::HeaderProblem;
use crate::provider::{Hmac, HmacScheme};
use crate::{
    Algorithm, HeaderFault, HeaderList, HmacKey, KeyForm, Provider, ProviderSecret, SignError, SignedHeader,
    Verified, VerifyError, WebhookRequest, encoding,
};

/// Longest description, in bytes.
const SCHEME_BYTES_MAX: usize = 1_024;
/// Unix times from here on are milliseconds: as seconds they would lie in the year 5138.
const MILLISECONDS_FROM: i64 = 100_000_000_000;

/// An HMAC scheme read from a line such as `hmac-sha256 hex {timestamp}.{body} X-Sig timestamp=X-Time`.
///
/// Words parted by white space, the first four in this order:
/// 1. the algorithm: `hmac-sha1`, `hmac-sha256` or `hmac-sha512` (`sha1`, `sha256`, `sha512`);
/// 2. the encoding of the signature: `hex` (either case) or `base64` (standard, padded);
/// 3. the signed string: text with `{body}` and, if wanted, `{id}`, `{timestamp}`, `{header:NAME}`;
/// 4. the header with the signature, `NAME` or `NAME:PREFIX` if every signature follows a prefix, as in
///    `X-Hub-Signature-256:sha256=`. Without one, `sha256=` (the hash in use) is dropped where it is there.
///
/// Then, in any order: `id=NAME` and `timestamp=NAME`, the headers of `{id}` and `{timestamp}` (else
/// `webhook-id`, `webhook-timestamp`), and `key=text`, `key=base64` or `key=hex`, the form of the secret
/// (else `text`).
///
/// A timestamp is Unix time, from 100,000,000,000 on in milliseconds, and is held against the tolerance.
/// Several signatures stand in one header parted by commas or spaces, or in repeats of it.
#[derive(Debug)]
pub struct GenericScheme(Hmac<Scheme>);

#[derive(Debug)]
struct Scheme {
    algorithm: Algorithm,
    encoding: SignatureEncoding,
    template: Vec<Field>,
    header: String,
    prefix: Option<String>,
    id_header: String,
    timestamp_header: String,
    key_form: KeyForm,
}

#[derive(Debug, Clone, Copy)]
enum SignatureEncoding {
    Hex,
    Base64,
}

#[derive(Debug, PartialEq, Eq)]
enum Field {
    Literal(String),
    Body,
    Id,
    Timestamp,
    Header(String),
}

/// A description of a scheme that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    /// Fewer than four words.
    #[error("a scheme is `ALGORITHM ENCODING TEMPLATE HEADER`, as in `hmac-sha256 hex {{body}} X-Sig`")]
    TooFewWords,
    /// More than 1,024 bytes.
    #[error("a scheme has at most 1024 bytes")]
    TooLong,
    /// The first word.
    #[error("unknown algorithm `{0}`; known are hmac-sha1, hmac-sha256, hmac-sha512")]
    UnknownAlgorithm(String),
    /// The second word.
    #[error("unknown encoding `{0}`; known are hex, base64")]
    UnknownEncoding(String),
    /// Something in braces in the third word.
    #[error("unknown field `{{{0}}}`; known are {{body}}, {{id}}, {{timestamp}}, {{header:NAME}}")]
    UnknownField(String),
    /// A `{` without `}` or the reverse.
    #[error("the braces of the template do not pair up")]
    UnbalancedBraces,
    /// A signature that does not cover the body proves nothing about it.
    #[error("the template has no {{body}}")]
    NoBody,
    /// Not the name of an HTTP header.
    #[error("`{0}` is not a header name")]
    InvalidHeaderName(String),
    /// A word after the fourth.
    #[error("unknown setting `{0}`; known are id=NAME, timestamp=NAME, key=text|base64|hex")]
    UnknownSetting(String),
}

impl GenericScheme {
    /// Reads a description.
    ///
    /// # Errors
    /// [`SchemeError`] names the word that is wrong.
    pub fn parse(text: &str) -> Result<Self, SchemeError> {
        if text.len() > SCHEME_BYTES_MAX {
            return Err(SchemeError::TooLong);
        }
        let mut words = text.split_whitespace();
        let (Some(algorithm), Some(encoding), Some(template), Some(header)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(SchemeError::TooFewWords);
        };
        let (header, prefix) = match header.split_once(':') {
            Some((name, prefix)) => (name, Some(prefix.to_owned())),
            None => (header, None),
        };
        let mut scheme = Scheme {
            algorithm: algorithm_named(algorithm)?,
            encoding: encoding_named(encoding)?,
            template: template_fields(template)?,
            header: header_name(header)?,
            prefix,
            id_header: "webhook-id".to_owned(),
            timestamp_header: "webhook-timestamp".to_owned(),
            key_form: KeyForm::Text,
        };
        for word in words {
            match word.split_once('=') {
                Some(("id", name)) => scheme.id_header = header_name(name)?,
                Some(("timestamp", name)) => scheme.timestamp_header = header_name(name)?,
                Some(("key", "text")) => scheme.key_form = KeyForm::Text,
                Some(("key", "base64")) => scheme.key_form = KeyForm::Base64,
                Some(("key", "hex")) => scheme.key_form = KeyForm::Hex,
                _ => return Err(SchemeError::UnknownSetting(word.to_owned())),
            }
        }
        Ok(Self(Hmac(scheme)))
    }
}

impl Provider for GenericScheme {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn sign(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<SignedHeader>, SignError> {
        self.0.sign(secrets, request)
    }

    fn verify(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Verified, VerifyError> {
        self.0.verify(secrets, request)
    }

    fn explain(&self, secrets: &[ProviderSecret], request: &WebhookRequest<'_>) -> String {
        self.0.explain(secrets, request)
    }
}

impl HmacScheme for Scheme {
    fn name(&self) -> &'static str {
        "generic"
    }

    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    fn key_form(&self) -> KeyForm {
        self.key_form
    }

    fn read<'a>(&'a self, request: &WebhookRequest<'a>) -> Result<Presented<'a>, VerifyError> {
        let headers = &request.headers;
        let signatures = self
            .signatures(&headers.needed_all(&self.header)?)
            .map_err(|fault| HeaderProblem::malformed(&self.header, fault))?;
        let id = if self.uses(&Field::Id) { Some(headers.needed(&self.id_header)?) } else { None };
        let timestamp_text =
            if self.uses(&Field::Timestamp) { Some(headers.needed(&self.timestamp_header)?) } else { None };
        let timestamp = timestamp_text.map(|text| self.timestamp(text)).transpose()?;
        Ok(Presented {
            algorithm: self.algorithm,
            content: self.content(headers, id.unwrap_or_default(), timestamp_text.unwrap_or_default())?,
            signatures,
            timestamp,
            id,
            is_id_signed: id.is_some(),
        })
    }

    fn write(&self, keys: &[HmacKey], request: &WebhookRequest<'_>) -> Result<Vec<SignedHeader>, SignError> {
        let mut signed = Vec::new();
        let mut id = "";
        if self.uses(&Field::Id) {
            id = request.headers.needed(&self.id_header)?;
            signed.push(SignedHeader::new(self.id_header.clone(), id));
        }
        let mut timestamp = String::new();
        if self.uses(&Field::Timestamp) {
            timestamp = match request.headers.one(&self.timestamp_header)? {
                Some(text) => self.timestamp(text).map(|_| text.to_owned())?,
                None => Timestamp::at(request.now_ms, TimeUnit::Seconds).value.to_string(),
            };
            signed.push(SignedHeader::new(self.timestamp_header.clone(), timestamp.clone()));
        }
        let content = self.content(&request.headers, id, &timestamp)?;
        let prefix = self.prefix.as_deref().unwrap_or_default();
        let signatures: Vec<String> = keys
            .iter()
            .map(|key| {
                format!("{prefix}{}", self.encoding.encoded(tag(key, &content, request.body).as_bytes()))
            })
            .collect();
        signed.push(SignedHeader::new(self.header.clone(), signatures.join(",")));
        Ok(signed)
    }
}

impl Scheme {
    fn uses(&self, field: &Field) -> bool {
        self.template.contains(field)
    }

    fn timestamp(&self, text: &str) -> Result<Timestamp, HeaderProblem> {
        let seconds = Timestamp::parse(text, TimeUnit::Seconds)
            .map_err(|fault| HeaderProblem::malformed(&self.timestamp_header, fault))?;
        let unit =
            if seconds.value >= MILLISECONDS_FROM { TimeUnit::Milliseconds } else { TimeUnit::Seconds };
        Ok(Timestamp { unit, ..seconds })
    }

    fn content<'a>(
        &'a self,
        headers: &HeaderList<'a>,
        id: &'a str,
        timestamp: &'a str,
    ) -> Result<Vec<Part<'a>>, HeaderProblem> {
        self.template
            .iter()
            .map(|field| {
                Ok(match field {
                    Field::Literal(text) => Part::Text(Cow::Borrowed(text)),
                    Field::Body => Part::Body,
                    Field::Id => Part::Text(Cow::Borrowed(id)),
                    Field::Timestamp => Part::Text(Cow::Borrowed(timestamp)),
                    Field::Header(name) => Part::Text(Cow::Borrowed(headers.needed(name)?)),
                })
            })
            .collect()
    }

    fn signatures(&self, values: &[&str]) -> Result<Vec<Vec<u8>>, HeaderFault> {
        let mut signatures = Vec::new();
        let entries = values.iter().flat_map(|value| value.split([',', ' ', '\t']));
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let text = match &self.prefix {
                Some(prefix) => entry.strip_prefix(prefix.as_str()),
                None => Some(entry.strip_prefix(self.usual_prefix()).unwrap_or(entry)),
            };
            let decoded = text.and_then(|text| self.encoding.decoded(text));
            let Some(bytes) = decoded.filter(|bytes| bytes.len() == self.algorithm.tag_bytes()) else {
                continue;
            };
            if signatures.len() == SIGNATURES_MAX {
                return Err(HeaderFault::TooManySignatures);
            }
            signatures.push(bytes);
        }
        if signatures.is_empty() { Err(HeaderFault::NoSignature) } else { Ok(signatures) }
    }

    fn usual_prefix(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Sha1 => "sha1=",
            Algorithm::Sha256 => "sha256=",
            Algorithm::Sha512 => "sha512=",
        }
    }
}

impl SignatureEncoding {
    fn encoded(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => encoding::hex(bytes),
            Self::Base64 => encoding::base64(bytes),
        }
    }

    fn decoded(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => encoding::hex_decoded(text),
            Self::Base64 => encoding::base64_decoded(text),
        }
    }
}

fn algorithm_named(name: &str) -> Result<Algorithm, SchemeError> {
    match name {
        "hmac-sha1" | "sha1" => Ok(Algorithm::Sha1),
        "hmac-sha256" | "sha256" => Ok(Algorithm::Sha256),
        "hmac-sha512" | "sha512" => Ok(Algorithm::Sha512),
        _ => Err(SchemeError::UnknownAlgorithm(name.to_owned())),
    }
}

fn encoding_named(name: &str) -> Result<SignatureEncoding, SchemeError> {
    match name {
        "hex" => Ok(SignatureEncoding::Hex),
        "base64" => Ok(SignatureEncoding::Base64),
        _ => Err(SchemeError::UnknownEncoding(name.to_owned())),
    }
}

fn template_fields(template: &str) -> Result<Vec<Field>, SchemeError> {
    let mut fields = Vec::new();
    let mut rest = template;
    while !rest.is_empty() {
        let (literal, after) = rest.split_once('{').map_or((rest, None), |(text, after)| (text, Some(after)));
        if literal.contains('}') {
            return Err(SchemeError::UnbalancedBraces);
        }
        if !literal.is_empty() {
            fields.push(Field::Literal(literal.to_owned()));
        }
        let Some(after) = after else { break };
        let (name, after) = after.split_once('}').ok_or(SchemeError::UnbalancedBraces)?;
        fields.push(match name {
            "body" => Field::Body,
            "id" => Field::Id,
            "timestamp" => Field::Timestamp,
            _ => match name.strip_prefix("header:") {
                Some(header) => Field::Header(header_name(header)?),
                None => return Err(SchemeError::UnknownField(name.to_owned())),
            },
        });
        rest = after;
    }
    if fields.contains(&Field::Body) { Ok(fields) } else { Err(SchemeError::NoBody) }
}

/// A field name by RFC 9110, section 5.6.2, in lower case.
fn header_name(name: &str) -> Result<String, SchemeError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        Ok(name.to_ascii_lowercase())
    } else {
        Err(SchemeError::InvalidHeaderName(name.to_owned()))
    }
}
