//! Signing webhooks and verifying them.
//!
//! The crate turns bytes into signatures and back into a yes or no. It stands beside the walk of a
//! delivery: the engine asks [`standard`] or [`x_webhook`] for the headers of one attempt, and whoever
//! receives webhooks asks a [`Provider`] whether a request is genuine.
//!
//! - [`SigningSecret`] is the secret of an endpoint, `whsec_…`; [`Signer`] is the same secret with the
//!   keyed hash states computed once, for the hot path.
//! - [`standard`] is Standard Webhooks `v1`, [`x_webhook`] the `t=…,v1=…` style.
//! - [`provider()`] finds a scheme by name; [`GenericScheme`] is one described by a line of text.
//!
//! What it must never do: read a clock, a random source, a file or a socket (time and randomness are
//! parameters); print a secret or an expected signature; panic on bytes from outside; compare a
//! signature in a time that depends on its content.

mod check;
mod encoding;
mod error;
mod explain;
mod hmac_key;
mod provider;
mod provider_secret;
mod providers;
mod request;
mod secret;
mod signer;
pub mod standard;
pub mod x_webhook;

pub use check::Verified;
pub use error::{HeaderFault, SecretError, SignError, VerifyError};
pub use hmac_key::{Algorithm, HmacKey, Tag};
pub use provider::{Provider, SignedHeader, provider, providers};
pub use provider_secret::{KeyForm, ProviderSecret};
pub use providers::generic::{GenericScheme, SchemeError};
pub use request::{HeaderList, TOLERANCE_DEFAULT, WebhookRequest};
pub use secret::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, SigningSecret};
pub use signer::Signer;
