//! What a person is told.

use pombo_signature::{ProviderSecret, Signer, WebhookRequest, provider, standard, x_webhook};

use crate::requests::{CURRENT, NOW_MS, OLD, list, owned, secret};

const BODY: &[u8] = b"{\"email\":\"test@example.com\",\"username\":\"test_user\"}";

fn explain(name: &str, headers: &[(String, String)], secret: &str, body: &[u8]) -> String {
    let request = WebhookRequest::new(list(headers), body, NOW_MS);
    provider(name).expect("known").explain(&[ProviderSecret::new(secret)], &request)
}

fn standard_headers() -> Vec<(String, String)> {
    owned(standard::headers(&[&Signer::new(&secret(CURRENT))], "msg_1", NOW_MS / 1_000, BODY))
}

#[test]
fn a_good_request_is_explained_in_full() {
    let text = explain("standard-webhooks", &standard_headers(), CURRENT, BODY);
    let want = "\
standard-webhooks: verified with secret 1
signatures to check: 1 (hmac-sha256)
timestamp: 1649367553 (seconds), 0 s ago, within the tolerance of 300 s
signed string (68 bytes): msg_1.1649367553.{\"email\":\"test@example.com\",\"username\":\"test_user\"}
body: 51 bytes, SHA-256 a75236b4293fb36949438f208517dba93f773c9f761e5ec8ce5b698f715bd4a2
secret 1: 38 characters, starts with whsec_
  UTF-8 bytes of the whole text: no match
  UTF-8 bytes after `whsec_`: no match
  base64, decoded (the form of this scheme): matches
  hexadecimal, decoded: not possible: the secret is not hexadecimal
";
    assert_eq!(text, want);
}

#[test]
fn the_other_key_form_is_found_both_ways() {
    let current = secret(CURRENT);
    // An x-webhook signature checks with the whole text; a sender that decoded it is found out.
    let signer = Signer::new(&current);
    let mut headers = owned(x_webhook::headers(&[&signer], "evt_1", NOW_MS, BODY));
    let decoded = explain_decoded_x_webhook(&mut headers);
    assert!(decoded.contains("x-webhook: not verified: no signature matches"), "{decoded}");
    assert!(decoded.contains("secret 1 matches if the secret is decoded from base64"), "{decoded}");

    let mut headers = standard_headers();
    headers[2].1 = signed_undecoded();
    let text = explain("svix", &headers, CURRENT, BODY);
    assert!(text.contains("UTF-8 bytes of the whole text: matches"), "{text}");
    assert!(text.contains("secret 1 matches if the secret is used without base64 decoding"), "{text}");
}

/// A signature over `<ms>.<body>` by a sender that decodes the secret.
fn explain_decoded_x_webhook(headers: &mut [(String, String)]) -> String {
    let scheme = "sha256 hex {timestamp}.{body} x-sig key=base64";
    let signature = signed_by(scheme, &NOW_MS.to_string());
    headers[2].1 = format!("t={NOW_MS},v1={signature}");
    explain("x-webhook", headers, CURRENT, BODY)
}

/// A Standard Webhooks signature by a sender that forgets to decode the secret.
fn signed_undecoded() -> String {
    let scheme = "sha256 base64 {id}.{timestamp}.{body} x-sig";
    format!("v1,{}", signed_by(scheme, &(NOW_MS / 1_000).to_string()))
}

fn signed_by(scheme: &str, timestamp: &str) -> String {
    use pombo_signature::{GenericScheme, Provider};
    let given = owned([("webhook-id", "msg_1".to_owned()), ("webhook-timestamp", timestamp.to_owned())]);
    let request = WebhookRequest::new(list(&given), BODY, NOW_MS);
    let scheme = GenericScheme::parse(scheme).expect("a good scheme");
    let mut headers = scheme.sign(&[ProviderSecret::new(CURRENT)], &request).expect("signed");
    headers.pop().expect("a signature").value
}

#[test]
fn a_body_that_was_changed_on_its_way_is_found() {
    let headers = standard_headers();
    let text = explain("svix", &headers, CURRENT, &[BODY, b"\n"].concat());
    assert!(text.contains("secret 1 matches if the newline at the end of the body is removed"), "{text}");
    let spaced = String::from_utf8_lossy(BODY).replace(':', ": ").replace(',', ",\n  ");
    let text = explain("svix", &headers, CURRENT, spaced.as_bytes());
    assert!(text.contains("secret 1 matches if the body is JSON without white space"), "{text}");
    let text = explain("svix", &headers, OLD, BODY);
    assert!(text.contains("nothing tried matches: the secret is another one"), "{text}");
}

#[test]
fn a_time_in_the_wrong_unit_is_pointed_out() {
    let signer = Signer::new(&secret(CURRENT));
    let headers = owned(standard::headers(&[&signer], "msg_1", NOW_MS, BODY));
    let text = explain("svix", &headers, CURRENT, BODY);
    assert!(text.contains("it looks like milliseconds where this scheme has seconds"), "{text}");
    let headers = owned(x_webhook::headers(&[&signer], "evt_1", NOW_MS / 1_000, BODY));
    let text = explain("x", &headers, CURRENT, BODY);
    assert!(text.contains("it looks like seconds where this scheme has milliseconds"), "{text}");
}

#[test]
fn a_missing_header_is_answered_with_those_that_are_there() {
    let headers = owned([("Content-Type", "application/json".to_owned()), ("X-\u{1b}[31m", String::new())]);
    let text = explain("svix", &headers, CURRENT, BODY);
    let want = "\
standard-webhooks: not verified: header `webhook-signature` is missing
headers of the request: content-type, x-\\u{1b}[31m
";
    assert_eq!(text, want);
}

#[test]
fn no_secret_and_no_right_signature_is_shown() {
    let mut headers = standard_headers();
    let right = headers[2].1.replace("v1,", "");
    headers[2].1 = format!("v1,{}", right.replace(['A', 'b', 'c', 'd'], "e"));
    let text = explain("svix", &headers, CURRENT, BODY);
    assert!(text.contains("not verified"), "{text}");
    assert!(!text.contains(&right), "{text}");
    assert!(!text.contains("C2FVsBQIhrscChlQIMV"), "{text}");
}

#[test]
fn a_long_or_binary_body_is_cut_and_escaped() {
    let body = [&b"\xff\x00\x1b[2J\"q\"\n"[..], &[b'x'; 1_000]].concat();
    let signer = Signer::new(&secret(CURRENT));
    let headers = owned(standard::headers(&[&signer], "msg_1", NOW_MS / 1_000, &body));
    let text = explain("svix", &headers, CURRENT, &body);
    assert!(text.contains("msg_1.1649367553.\\xff\\0\\u{1b}[2J\"q\"\\nxxx"), "{text}");
    assert!(text.contains("… (and 946 bytes more)"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}
