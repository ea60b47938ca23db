//! Standard Webhooks as a provider: Svix and everyone who sends by the standard.

use crate::check::{Presented, TimeUnit, Timestamp};
use crate::error::HeaderProblem;
use crate::provider::HmacScheme;
use crate::{Algorithm, HmacKey, KeyForm, SignError, SignedHeader, VerifyError, WebhookRequest, standard};

/// The scheme of [`standard`], with the secret in any of the shapes that senders show: with or without
/// `whsec_`, padded or not, of any length.
#[derive(Debug)]
pub(crate) struct StandardWebhooks;

impl HmacScheme for StandardWebhooks {
    fn name(&self) -> &'static str {
        "standard-webhooks"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["svix"]
    }

    fn algorithm(&self) -> Algorithm {
        Algorithm::Sha256
    }

    fn key_form(&self) -> KeyForm {
        KeyForm::Base64
    }

    fn read<'a>(&'a self, request: &WebhookRequest<'a>) -> Result<Presented<'a>, VerifyError> {
        Ok(standard::read(&request.headers)?)
    }

    fn write(&self, keys: &[HmacKey], request: &WebhookRequest<'_>) -> Result<Vec<SignedHeader>, SignError> {
        let id = standard::signable_id(standard::ID_HEADER, request.headers.needed(standard::ID_HEADER)?)?;
        let timestamp = match request.headers.one(standard::TIMESTAMP_HEADER)? {
            Some(text) => Timestamp::parse(text, TimeUnit::Seconds)
                .map_err(|fault| HeaderProblem::malformed(standard::TIMESTAMP_HEADER, fault))?,
            None => Timestamp::at(request.now_ms, TimeUnit::Seconds),
        };
        let signature = standard::sign_with_keys(keys.iter(), id, timestamp.value, request.body);
        Ok(vec![
            SignedHeader::new(standard::ID_HEADER, id),
            SignedHeader::new(standard::TIMESTAMP_HEADER, timestamp.value.to_string()),
            SignedHeader::new(standard::SIGNATURE_HEADER, signature),
        ])
    }
}
