//! The schemes known by name.

use std::borrow::Cow;
use std::fmt;

use crate::check::Presented;
use crate::providers::{standard_webhooks::StandardWebhooks, x_webhook::XWebhook};
use crate::{
    Algorithm, HmacKey, KeyForm, ProviderSecret, SecretError, SignError, Verified, VerifyError,
    WebhookRequest, explain,
};

/// One header to put on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHeader {
    /// Name, in lower case for the schemes of this crate.
    pub name: Cow<'static, str>,
    /// Value, visible ASCII as far as what was given to sign is.
    pub value: String,
}

impl SignedHeader {
    pub(crate) fn new(name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// How one provider signs its webhooks.
pub trait Provider: fmt::Debug + Send + Sync {
    /// Its name, in lower case with hyphens.
    fn name(&self) -> &'static str;

    /// Other names it answers to.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// The headers that make the request one of this provider, as it would send it itself.
    ///
    /// Secrets stand newest first. An id that the scheme needs is taken from the headers of the request; so
    /// is the time, if it is there, and `now_ms` otherwise.
    ///
    /// # Errors
    /// [`SignError`]: no secret, a secret of the wrong form, a header that must be given.
    fn sign(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<SignedHeader>, SignError>;

    /// Whether the request is from this provider: every signature × every secret, in constant time, then
    /// the time where the scheme has one.
    ///
    /// # Errors
    /// [`VerifyError`], in the order given there.
    fn verify(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Verified, VerifyError>;

    /// A few lines for a person who wonders why a request does not verify: the verdict, the string that
    /// was signed (body cut short), each key form and whether it matches, and what would make it match.
    ///
    /// It holds the start of the body, but neither a secret nor a signature that was computed. Whoever may
    /// read it learns which reading of the secret is right, so it is for the owner of the secret alone.
    fn explain(&self, secrets: &[ProviderSecret], request: &WebhookRequest<'_>) -> String;
}

static PROVIDERS: [&dyn Provider; 2] = [&Hmac(StandardWebhooks), &Hmac(XWebhook)];

/// Every provider known by name.
pub fn providers() -> &'static [&'static dyn Provider] {
    &PROVIDERS
}

/// The provider of that name or alias, in any case.
pub fn provider(name: &str) -> Option<&'static dyn Provider> {
    PROVIDERS.into_iter().find(|provider| {
        provider.name().eq_ignore_ascii_case(name)
            || provider.aliases().iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}

/// A scheme that is an HMAC over some parts of a request: what its file must say, and no more.
pub(crate) trait HmacScheme: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    fn algorithm(&self) -> Algorithm;

    fn key_form(&self) -> KeyForm;

    /// What the request says was signed, and with which signatures.
    fn read<'a>(&'a self, request: &WebhookRequest<'a>) -> Result<Presented<'a>, VerifyError>;

    /// The headers of a signed request; `keys` is not empty and stands newest first.
    fn write(&self, keys: &[HmacKey], request: &WebhookRequest<'_>) -> Result<Vec<SignedHeader>, SignError>;
}

/// A [`Provider`] made of an [`HmacScheme`].
#[derive(Debug)]
pub(crate) struct Hmac<S>(pub(crate) S);

impl<S: HmacScheme> Provider for Hmac<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn aliases(&self) -> &'static [&'static str] {
        self.0.aliases()
    }

    fn sign(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Vec<SignedHeader>, SignError> {
        let keys = keys(&self.0, secrets).map_err(|(number, fault)| SignError::Secret { number, fault })?;
        if keys.is_empty() {
            return Err(SignError::NoSecret);
        }
        self.0.write(&keys, request)
    }

    fn verify(
        &self,
        secrets: &[ProviderSecret],
        request: &WebhookRequest<'_>,
    ) -> Result<Verified, VerifyError> {
        let keys = keys(&self.0, secrets).map_err(|(number, fault)| VerifyError::Secret { number, fault })?;
        if keys.is_empty() {
            return Err(VerifyError::NoSecret);
        }
        self.0.read(request)?.verify(keys.iter(), request)
    }

    fn explain(&self, secrets: &[ProviderSecret], request: &WebhookRequest<'_>) -> String {
        explain::explanation(&self.0, &self.verify(secrets, request), secrets, request)
    }
}

/// The keys of all secrets, or the number (from 1) of the one that has the wrong form.
fn keys(scheme: &impl HmacScheme, secrets: &[ProviderSecret]) -> Result<Vec<HmacKey>, (usize, SecretError)> {
    secrets
        .iter()
        .enumerate()
        .map(|(index, secret)| match secret.key(scheme.key_form()) {
            Ok(key) => Ok(HmacKey::new(scheme.algorithm(), &key)),
            Err(fault) => Err((index + 1, fault)),
        })
        .collect()
}
