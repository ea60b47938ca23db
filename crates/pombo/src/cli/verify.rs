//! `pombo verify`: whether a request is genuine, and why not.

use std::time::Duration;

use clap::Args;
use pombo_domain::clock::Timestamp;
use pombo_signature::{Verified, VerifyError};
use serde_json::json;

use crate::argument::span_arg;
use crate::cli::sign::RequestArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  pombo verify --provider standard-webhooks --secret env:SECRET --body @body.json \\
      --header 'webhook-id: evt_1' --header 'webhook-timestamp: 1764534120' --header 'webhook-signature: v1,…'
  pombo verify --provider x-webhook --secret @secret.txt --body @body.json \\
      --header 'x-webhook-signature: t=1764534120000,v1=…' --now 1764534120 --explain

Exit codes: 0 genuine, 1 not genuine, 2 wrong usage.";

/// Arguments of `pombo verify`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// How far the signed time may lie from now (default: 5m)
    #[arg(long, value_name = "DURATION", value_parser = span_arg)]
    tolerance: Option<Duration>,
    /// Say what was signed, and what would make it match
    #[arg(long)]
    explain: bool,
}

/// Runs it.
pub(crate) fn run(args: &VerifyArgs, output: Output) -> Outcome {
    let given = args.request.read()?;
    let mut request = given.request();
    if let Some(tolerance) = args.tolerance {
        request.tolerance = tolerance;
    }
    let provider = given.provider.as_provider();
    let verdict = provider.verify(&given.secrets, &request);
    let explanation = args.explain.then(|| provider.explain(&given.secrets, &request));
    if output.is_json() {
        print_json(&verdict, explanation.as_deref(), output)?;
    } else {
        output.line(&match &verdict {
            Ok(verified) => text(verified),
            Err(error) => format!("bad: {error}"),
        })?;
        explanation.map_or(Ok(()), |text| output.line(text.trim_end()))?;
    }
    verdict.map(drop).map_err(|_| Failure::Told)
}

fn text(verified: &Verified) -> String {
    let mut parts = vec![format!("ok: secret {}", verified.secret_index + 1)];
    parts.extend(verified.timestamp_ms.map(|at| format!("signed at {}", Timestamp::from_millis(at))));
    parts.extend(verified.id.as_ref().map(|id| {
        let note = if verified.is_id_signed { "" } else { " (the id is not signed)" };
        format!("id {id}{note}")
    }));
    parts.join(", ")
}

fn print_json(verdict: &Result<Verified, VerifyError>, explanation: Option<&str>, output: Output) -> Outcome {
    let mut document = match verdict {
        Ok(verified) => json!({
            "ok": true,
            "secret": verified.secret_index + 1,
            "id": verified.id,
            "idSigned": verified.is_id_signed,
            "signedAt": verified.timestamp_ms.map(Timestamp::from_millis),
        }),
        Err(error) => json!({ "ok": false, "reason": error.to_string() }),
    };
    if let Some(explanation) = explanation {
        document["explanation"] = json!(explanation);
    }
    output.json(&document)
}
