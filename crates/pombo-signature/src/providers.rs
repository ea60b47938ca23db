//! One file for each scheme.

pub(crate) mod generic;
pub(crate) mod standard_webhooks;
pub(crate) mod x_webhook;
