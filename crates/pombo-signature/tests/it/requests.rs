//! Building requests and reading vectors.

use std::collections::BTreeMap;

use pombo_signature::{HeaderList, SignedHeader, SigningSecret, WebhookRequest};
use serde::Deserialize;

pub(crate) const CURRENT: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
pub(crate) const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const NOW_MS: i64 = 1_649_367_553_123;

pub(crate) fn secret(text: &str) -> SigningSecret {
    SigningSecret::parse(text).expect("the test gives a good secret")
}

/// One row of a file in `vectors/`.
#[derive(Deserialize)]
pub(crate) struct RequestVector {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    pub(crate) now: i64,
    pub(crate) valid: bool,
    pub(crate) scheme: Option<String>,
}

impl RequestVector {
    pub(crate) fn request(&self) -> WebhookRequest<'_> {
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        WebhookRequest::new(headers, self.body.as_bytes(), self.now * 1_000)
    }
}

pub(crate) fn rows<T: for<'de> Deserialize<'de>>(json: &str) -> Vec<T> {
    serde_json::from_str(json).expect("the vector file has this shape")
}

pub(crate) fn owned<N: Into<String>>(
    headers: impl IntoIterator<Item = (N, String)>,
) -> Vec<(String, String)> {
    headers.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

pub(crate) fn from_signed(headers: Vec<SignedHeader>) -> Vec<(String, String)> {
    headers.into_iter().map(|header| (header.name.into_owned(), header.value)).collect()
}

pub(crate) fn list(headers: &[(String, String)]) -> HeaderList<'_> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}
