//! The `x-webhook` style as a provider.

use crate::check::{Presented, TimeUnit, Timestamp};
use crate::error::HeaderProblem;
use crate::provider::HmacScheme;
use crate::{Algorithm, HmacKey, KeyForm, SignError, SignedHeader, VerifyError, WebhookRequest, x_webhook};

/// The scheme of [`x_webhook`]. The id is not signed, so a request to sign may go without.
#[derive(Debug)]
pub(crate) struct XWebhook;

impl HmacScheme for XWebhook {
    fn name(&self) -> &'static str {
        "x-webhook"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["x"]
    }

    fn algorithm(&self) -> Algorithm {
        Algorithm::Sha256
    }

    fn key_form(&self) -> KeyForm {
        KeyForm::Text
    }

    fn read<'a>(&'a self, request: &WebhookRequest<'a>) -> Result<Presented<'a>, VerifyError> {
        Ok(x_webhook::read(&request.headers)?)
    }

    fn write(&self, keys: &[HmacKey], request: &WebhookRequest<'_>) -> Result<Vec<SignedHeader>, SignError> {
        let timestamp = match request.headers.one(x_webhook::TIMESTAMP_HEADER)? {
            Some(text) => Timestamp::parse(text, TimeUnit::Milliseconds)
                .map_err(|fault| HeaderProblem::malformed(x_webhook::TIMESTAMP_HEADER, fault))?,
            None => Timestamp::at(request.now_ms, TimeUnit::Milliseconds),
        };
        let id = request.headers.one(x_webhook::ID_HEADER)?;
        let mut headers: Vec<SignedHeader> =
            id.map(|id| SignedHeader::new(x_webhook::ID_HEADER, id)).into_iter().collect();
        headers.push(SignedHeader::new(x_webhook::TIMESTAMP_HEADER, timestamp.value.to_string()));
        let signature = x_webhook::sign_with_keys(keys.iter(), timestamp.value, request.body);
        headers.push(SignedHeader::new(x_webhook::SIGNATURE_HEADER, signature));
        Ok(headers)
    }
}
