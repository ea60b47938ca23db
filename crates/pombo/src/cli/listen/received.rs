//! A request as it came, whether its signatures hold, and how it is shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use pombo_domain::clock::Timestamp;
use pombo_signature::{HeaderList, Provider, ProviderSecret, WebhookRequest, provider, standard, x_webhook};
use serde_json::{Value, json};

use crate::failure::Outcome;
use crate::output::Output;

/// Most bytes of a body that are shown to people.
const SHOWN_BYTES_MAX: usize = 16 * 1024;

/// A request as it came.
pub(crate) struct Received {
    /// From 1.
    pub(crate) number: u64,
    /// When its body was complete.
    pub(crate) at: Timestamp,
    /// Its method.
    pub(crate) method: Method,
    /// Its path and query.
    pub(crate) target: String,
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// The exact bytes.
    pub(crate) body: Bytes,
}

/// Whether a signature in one style holds.
pub(crate) struct Signature {
    style: &'static str,
    /// The reason where it does not.
    verdict: Result<(), String>,
}

impl Received {
    /// The verdict for each style whose header is there.
    pub(crate) fn signatures(&self, secrets: &[ProviderSecret]) -> Vec<Signature> {
        let styles = [
            ("standard", "standard-webhooks", standard::SIGNATURE_HEADER),
            ("x-webhook", "x-webhook", x_webhook::SIGNATURE_HEADER),
        ];
        let present = styles.into_iter().filter(|(_, _, header)| self.headers.contains_key(*header));
        present
            .map(|(style, name, _)| {
                let provider = provider(name).expect("both styles are providers");
                Signature { style, verdict: self.verify(provider, secrets) }
            })
            .collect()
    }

    fn verify(&self, provider: &dyn Provider, secrets: &[ProviderSecret]) -> Result<(), String> {
        let headers: HeaderList<'_> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let request = WebhookRequest::new(headers, &self.body, self.at.as_millis());
        provider.verify(secrets, &request).map(drop).map_err(|error| error.to_string())
    }

    /// Shows the request with what was answered.
    pub(crate) fn print(&self, signatures: &[Signature], answered: StatusCode, output: Output) -> Outcome {
        if output.is_json() {
            // One line each, also on a terminal: this is a stream.
            return output.bytes(self.document(signatures, answered).to_string().as_bytes());
        }
        output.line(&self.text(signatures, answered))
    }

    fn document(&self, signatures: &[Signature], answered: StatusCode) -> Value {
        let headers: Vec<Value> = self
            .headers
            .iter()
            .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
            .collect();
        let signatures: Vec<Value> = signatures
            .iter()
            .map(|signature| match &signature.verdict {
                Ok(()) => json!({ "style": signature.style, "ok": true }),
                Err(reason) => json!({ "style": signature.style, "ok": false, "reason": reason }),
            })
            .collect();
        let mut document = json!({
            "n": self.number,
            "receivedAt": self.at,
            "method": self.method.as_str(),
            "path": self.target,
            "headers": headers,
            "signatures": signatures,
            "answered": answered.as_u16(),
        });
        match std::str::from_utf8(&self.body) {
            Ok(text) => document["body"] = json!(text),
            Err(_) => document["bodyBase64"] = json!(STANDARD.encode(&self.body)),
        }
        document
    }

    fn text(&self, signatures: &[Signature], answered: StatusCode) -> String {
        let mut lines = vec![format!(
            "#{} {} {} {} -> {}",
            self.number,
            self.at,
            self.method,
            self.target,
            answered.as_u16()
        )];
        let verdicts: Vec<String> = signatures
            .iter()
            .map(|signature| match &signature.verdict {
                Ok(()) => format!("{} ok", signature.style),
                Err(reason) => format!("{} BAD ({reason})", signature.style),
            })
            .collect();
        lines.push(match verdicts.as_slice() {
            [] => "  signature: none".to_owned(),
            verdicts => format!("  signature: {}", verdicts.join(", ")),
        });
        lines.extend(
            self.headers
                .iter()
                .map(|(name, value)| format!("  {name}: {}", String::from_utf8_lossy(value.as_bytes()))),
        );
        lines.push(String::new());
        lines.push(self.body_text());
        lines.push(String::new());
        lines.join("\n")
    }

    fn body_text(&self) -> String {
        match std::str::from_utf8(&self.body) {
            Ok("") => "  (no body)".to_owned(),
            Ok(text) if text.len() > SHOWN_BYTES_MAX => {
                let shown = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
                format!("  {shown}… ({} bytes in all; --json shows all)", text.len())
            }
            Ok(text) => format!("  {text}"),
            Err(_) => format!("  ({} bytes that are not text; --json shows them)", self.body.len()),
        }
    }
}
