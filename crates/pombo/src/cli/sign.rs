//! `pombo sign`: the headers that make a request one of a provider.

use clap::Args;
use pombo_domain::clock::Timestamp;
use pombo_domain::secret::SecretText;
use pombo_signature::{
    GenericScheme, HeaderList, Provider, ProviderSecret, WebhookRequest, provider, providers,
};
use serde_json::json;

use crate::argument::{self, DataArg, HeaderArg, SecretArg, instant_arg};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  pombo sign --provider standard-webhooks --secret env:SECRET --body @body.json --header 'webhook-id: evt_1'
  pombo sign --provider x-webhook --secret @secret.txt --body '{\"a\":1}' --now 2026-11-30T20:22:00Z
  pombo sign --provider 'hmac-sha256 hex {body} X-Signature' --secret @secret.txt --body @body.json";

/// Arguments of `pombo sign`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SignArgs {
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// A request as `sign` and `verify` take it.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// Name of the provider, or a scheme such as 'hmac-sha256 hex {timestamp}.{body} X-Sig timestamp=X-Time'
    #[arg(long, value_name = "P")]
    provider: String,
    /// Its secret, as the provider shows it (may be repeated); or @file, env:NAME, - for stdin
    #[arg(long = "secret", value_name = "S", required = true, value_parser = SecretArg::parse)]
    secrets: Vec<SecretArg>,
    /// The exact body: text, or @file, or - for stdin
    #[arg(long, value_name = "BODY", value_parser = DataArg::parse)]
    body: DataArg,
    /// A header of the request, 'Name: value' (may be repeated)
    #[arg(long = "header", value_name = "HEADER", value_parser = HeaderArg::parse)]
    headers: Vec<HeaderArg>,
    /// The public URL of the request, for schemes that sign it
    #[arg(long, value_name = "U")]
    url: Option<String>,
    /// Instead of the present: RFC 3339 or Unix time
    #[arg(long, value_name = "T", value_parser = instant_arg)]
    now: Option<Timestamp>,
}

/// A request with everything read.
pub(crate) struct Given {
    /// How it is signed.
    pub(crate) provider: Scheme,
    /// The secrets.
    pub(crate) secrets: Vec<ProviderSecret>,
    headers: Vec<(String, SecretText)>,
    body: Vec<u8>,
    url: Option<String>,
    now: Timestamp,
}

/// A provider known by name, or one described by a line.
pub(crate) enum Scheme {
    /// By name.
    Named(&'static dyn Provider),
    /// By a line.
    Described(GenericScheme),
}

impl Scheme {
    fn find(text: &str) -> Outcome<Self> {
        if let Some(provider) = provider(text) {
            return Ok(Self::Named(provider));
        }
        if text.split_whitespace().count() > 1 {
            let scheme = GenericScheme::parse(text);
            return scheme
                .map(Self::Described)
                .map_err(|error| Failure::usage(format!("--provider {text:?} is no scheme: {error}")));
        }
        let known: Vec<&str> = providers().iter().map(|provider| provider.name()).collect();
        Err(Failure::usage(format!(
            "--provider {text:?} is unknown; known are {}, or describe a scheme (see --help)",
            known.join(", ")
        )))
    }

    /// As what it is.
    pub(crate) fn as_provider(&self) -> &dyn Provider {
        match self {
            Self::Named(provider) => *provider,
            Self::Described(scheme) => scheme,
        }
    }
}

impl RequestArgs {
    /// Reads files, stdin and the environment.
    pub(crate) fn read(&self) -> Outcome<Given> {
        let stdin = self.secrets.iter().filter(|secret| matches!(secret, SecretArg::Stdin)).count()
            + usize::from(matches!(self.body, DataArg::Stdin));
        if stdin > 1 {
            return Err(Failure::usage("only one of the secrets and the body can be read from stdin"));
        }
        let secrets = self.secrets.iter().map(|secret| Ok(ProviderSecret::new(secret.read()?.expose())));
        Ok(Given {
            provider: Scheme::find(&self.provider)?,
            secrets: secrets.collect::<Outcome<_>>()?,
            headers: self.headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
            body: self.body.read()?,
            url: self.url.clone(),
            now: self.now.unwrap_or_else(argument::now),
        })
    }
}

impl Given {
    /// As a signature scheme sees it.
    pub(crate) fn request(&self) -> WebhookRequest<'_> {
        let headers: HeaderList<'_> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.expose().as_bytes())).collect();
        let request = WebhookRequest::new(headers, &self.body, self.now.as_millis());
        WebhookRequest { url: self.url.as_deref(), ..request }
    }
}

/// Runs it.
pub(crate) fn run(args: &SignArgs, output: Output) -> Outcome {
    let given = args.request.read()?;
    let signed = given.provider.as_provider().sign(&given.secrets, &given.request());
    let headers = signed.map_err(|error| Failure::failed(format!("not signed: {error}")))?;
    if output.is_json() {
        let pairs: Vec<_> = headers.iter().map(|header| json!([header.name, header.value])).collect();
        return output.json(&json!({ "headers": pairs }));
    }
    headers.iter().try_for_each(|header| output.line(&format!("{}: {}", header.name, header.value)))
}
