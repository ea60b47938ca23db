//! Rules of reading headers, one by one.

use pombo_signature::{
    HeaderFault, Provider, ProviderSecret, SecretError, SignError, SignedHeader, Signer, SigningSecret,
    Verified, VerifyError, WebhookRequest, provider, providers, standard, x_webhook,
};

use crate::requests::{CURRENT, NOW_MS, OLD, list, owned, secret};

const BODY: &[u8] = b"{\"a\":1}";

fn standard_headers(secrets: &[&SigningSecret]) -> Vec<(String, String)> {
    let signers: Vec<Signer> = secrets.iter().map(|secret| Signer::new(secret)).collect();
    let signers: Vec<&Signer> = signers.iter().collect();
    owned(standard::headers(&signers, "msg_1", NOW_MS / 1_000, BODY))
}

fn x_webhook_headers(secrets: &[&SigningSecret]) -> Vec<(String, String)> {
    let signers: Vec<Signer> = secrets.iter().map(|secret| Signer::new(secret)).collect();
    let signers: Vec<&Signer> = signers.iter().collect();
    owned(x_webhook::headers(&signers, "evt_1", NOW_MS, BODY))
}

fn verify(name: &str, headers: &[(String, String)]) -> Result<Verified, VerifyError> {
    let request = WebhookRequest::new(list(headers), BODY, NOW_MS);
    provider(name).expect("known").verify(&[ProviderSecret::new(CURRENT)], &request)
}

fn malformed(name: &str, fault: HeaderFault) -> Result<Verified, VerifyError> {
    Err(VerifyError::MalformedHeader { name: name.to_owned(), fault })
}

#[test]
fn providers_answer_to_names_and_aliases() {
    let found = |name| provider(name).map(Provider::name);
    assert_eq!(found("standard-webhooks"), Some("standard-webhooks"));
    assert_eq!(found("svix"), Some("standard-webhooks"));
    assert_eq!(found("X-Webhook"), Some("x-webhook"));
    assert_eq!(found("x"), Some("x-webhook"));
    assert_eq!(found("nobody"), None);
    let mut names: Vec<&str> =
        providers().iter().flat_map(|p| p.aliases().iter().copied().chain([p.name()])).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "no name belongs to two providers");
}

#[test]
fn what_was_verified_is_told() {
    let (current, old) = (secret(CURRENT), secret(OLD));
    let headers = standard_headers(&[&old]);
    let request = WebhookRequest::new(list(&headers), BODY, NOW_MS);
    let verified = standard::verify(&[&Signer::new(&current), &Signer::new(&old)], &request);
    let want = Verified {
        secret_index: 1,
        id: Some("msg_1".to_owned()),
        is_id_signed: true,
        timestamp_ms: Some(NOW_MS / 1_000 * 1_000),
    };
    assert_eq!(verified, Ok(want));
    let want = Verified {
        secret_index: 0,
        id: Some("evt_1".to_owned()),
        is_id_signed: false,
        timestamp_ms: Some(NOW_MS),
    };
    assert_eq!(verify("x", &x_webhook_headers(&[&current])), Ok(want));
}

#[test]
fn a_missing_header_is_named() {
    let current = secret(CURRENT);
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut headers = standard_headers(&[&current]);
        headers.retain(|(given, _)| given != name);
        assert_eq!(verify("svix", &headers), Err(VerifyError::MissingHeader { name: name.to_owned() }));
    }
    let mut headers = x_webhook_headers(&[&current]);
    headers.retain(|(name, _)| name != "x-webhook-signature");
    let name = "x-webhook-signature".to_owned();
    assert_eq!(verify("x", &headers), Err(VerifyError::MissingHeader { name }));
}

#[test]
fn the_id_and_time_headers_of_x_webhook_may_be_absent() {
    let mut headers = x_webhook_headers(&[&secret(CURRENT)]);
    headers.retain(|(name, _)| name == "x-webhook-signature");
    assert_eq!(verify("x", &headers).expect("signed").id, None);
}

#[test]
fn signatures_in_repeated_or_joined_headers_are_all_tried() {
    let (current, old) = (secret(CURRENT), secret(OLD));
    let mine = standard_headers(&[&current]).remove(2).1;
    let mut headers = standard_headers(&[&old]);
    let other = headers[2].1.clone();
    for joined in [format!("{other}, {mine}"), format!("{other},{mine}"), format!("v1a,AAAA {other} {mine}")]
    {
        headers[2].1 = joined;
        assert_eq!(verify("svix", &headers).map(|v| v.secret_index), Ok(0), "{}", headers[2].1);
    }
    headers[2].1 = other;
    headers.push(("Webhook-Signature".to_owned(), mine));
    assert_eq!(verify("svix", &headers).map(|v| v.secret_index), Ok(0));

    let mine = x_webhook_headers(&[&current]).remove(2).1;
    let mut headers = x_webhook_headers(&[&old]);
    let other = headers[2].1.clone();
    headers[2].1 = format!("{other}, {mine}");
    assert_eq!(verify("x", &headers).map(|v| v.secret_index), Ok(0));
    headers[2].1 = other;
    headers.push(("x-webhook-signature".to_owned(), mine));
    assert_eq!(verify("x", &headers).map(|v| v.secret_index), Ok(0));
}

#[test]
fn svix_headers_are_read_and_never_mixed_with_the_standard_ones() {
    let mut headers = standard_headers(&[&secret(CURRENT)]);
    for (name, _) in &mut headers {
        *name = name.replace("webhook", "svix");
    }
    assert!(verify("svix", &headers).is_ok());
    headers[2].0 = "webhook-signature".to_owned();
    assert_eq!(verify("svix", &headers), Err(VerifyError::MissingHeader { name: "webhook-id".to_owned() }));
}

#[test]
fn a_header_with_two_meanings_is_refused() {
    let current = secret(CURRENT);
    for (at, name) in [(0, "webhook-id"), (1, "webhook-timestamp")] {
        let mut headers = standard_headers(&[&current]);
        headers.push(headers[at].clone());
        assert!(verify("svix", &headers).is_ok(), "an equal repeat of {name} changes nothing");
        headers.push((name.to_owned(), "1".to_owned()));
        assert_eq!(verify("svix", &headers), malformed(name, HeaderFault::Repeated));
    }
    let mut headers = x_webhook_headers(&[&current]);
    headers[2].1.push_str(",t=1");
    assert_eq!(verify("x", &headers), malformed("x-webhook-signature", HeaderFault::Repeated));
}

#[test]
fn the_borders_of_the_signed_string_cannot_be_moved() {
    // `msg_1.1649367553.1649367553.x` signed with one border must not verify with another.
    let current = secret(CURRENT);
    let signer = Signer::new(&current);
    let seconds = NOW_MS / 1_000;
    let body = format!("{seconds}.x");
    let mut headers = owned(standard::headers(&[&signer], "msg_1", seconds, body.as_bytes()));
    headers[0].1 = format!("msg_1.{seconds}");
    let request = WebhookRequest::new(list(&headers), b"x", NOW_MS);
    assert_eq!(standard::verify(&[&signer], &request), malformed("webhook-id", HeaderFault::FullStop));
}

#[test]
fn odd_timestamps_are_refused() {
    let current = secret(CURRENT);
    for text in ["+1649367553", "-1", "1649367553.0", " 1649367553", "0x1", "9999999999999999999", "١"] {
        let mut headers = standard_headers(&[&current]);
        headers[1].1 = text.to_owned();
        let want = malformed("webhook-timestamp", HeaderFault::NotATimestamp);
        assert_eq!(verify("svix", &headers), want, "{text}");
    }
}

#[test]
fn exactly_the_tolerance_is_still_allowed_and_no_more() {
    let current = secret(CURRENT);
    let svix = |now_ms| {
        let headers = standard_headers(&[&current]);
        standard::verify(&[&Signer::new(&current)], &WebhookRequest::new(list(&headers), BODY, now_ms))
            .is_ok()
    };
    let signed_ms = NOW_MS / 1_000 * 1_000;
    assert!(svix(signed_ms + 300_999), "the standard counts whole seconds");
    assert!(!svix(signed_ms + 301_000));
    assert!(svix(signed_ms - 300_000));
    assert!(!svix(signed_ms - 300_001));
    let x = |now_ms| {
        let headers = x_webhook_headers(&[&current]);
        x_webhook::verify(&[&Signer::new(&current)], &WebhookRequest::new(list(&headers), BODY, now_ms))
            .is_ok()
    };
    assert!(x(NOW_MS + 300_000) && x(NOW_MS - 300_000));
    assert!(!x(NOW_MS + 300_001) && !x(NOW_MS - 300_001));
}

#[test]
fn a_signature_has_one_spelling() {
    let good = standard_headers(&[&secret(CURRENT)]);
    let signature = good[2].1.clone();
    let unpadded = signature.trim_end_matches('=').to_owned();
    for other in
        [unpadded, format!("{signature}="), signature.replace("v1,", "v1,="), format!("{signature}AAAA")]
    {
        let mut headers = good.clone();
        headers[2].1 = other;
        let want = malformed("webhook-signature", HeaderFault::NoSignature);
        assert_eq!(verify("svix", &headers), want, "{}", headers[2].1);
    }
}

#[test]
fn too_many_signatures_are_refused() {
    let mut headers = standard_headers(&[&secret(CURRENT)]);
    let one = headers[2].1.clone();
    headers[2].1 = vec![one.as_str(); 32].join(" ");
    assert!(verify("svix", &headers).is_ok());
    headers[2].1 = vec![one.as_str(); 33].join(" ");
    assert_eq!(verify("svix", &headers), malformed("webhook-signature", HeaderFault::TooManySignatures));
}

#[test]
fn a_wrong_signature_with_an_old_time_is_called_wrong_and_not_old() {
    let headers = standard_headers(&[&secret(OLD)]);
    let request = WebhookRequest::new(list(&headers), BODY, NOW_MS + 3_600_000);
    let svix = provider("svix").expect("known");
    assert_eq!(svix.verify(&[ProviderSecret::new(CURRENT)], &request), Err(VerifyError::NoMatch));
    let verdict = svix.verify(&[ProviderSecret::new(OLD)], &request);
    assert!(matches!(verdict, Err(VerifyError::TimestampTooOld { .. })));
}

#[test]
fn a_secret_of_the_wrong_form_is_an_error_with_its_number() {
    let headers = standard_headers(&[&secret(CURRENT)]);
    let request = WebhookRequest::new(list(&headers), BODY, NOW_MS);
    let svix = provider("svix").expect("known");
    assert_eq!(svix.verify(&[], &request), Err(VerifyError::NoSecret));
    assert_eq!(standard::verify(&[], &request), Err(VerifyError::NoSecret));
    assert_eq!(x_webhook::verify(&[], &request), Err(VerifyError::NoSecret));
    for (text, fault) in [("whsec_", SecretError::Empty), ("whsec_a$cd", SecretError::NotBase64 { at: 1 })] {
        let secrets = [ProviderSecret::new(CURRENT), ProviderSecret::new(text)];
        assert_eq!(svix.verify(&secrets, &request), Err(VerifyError::Secret { number: 2, fault }));
        assert_eq!(svix.sign(&secrets, &request), Err(SignError::Secret { number: 2, fault }));
    }
    let x = provider("x").expect("known");
    let fault = SecretError::Empty;
    let want = Err(VerifyError::Secret { number: 1, fault });
    assert_eq!(x.verify(&[ProviderSecret::new("")], &request), want, "an empty key is no key");
    assert_eq!(format!("{:?}", ProviderSecret::new(CURRENT)), "ProviderSecret(..)");
}

#[test]
fn signing_takes_id_and_time_from_the_request_where_they_are() {
    let svix = provider("svix").expect("known");
    let secrets = [ProviderSecret::new(CURRENT)];
    let unsigned = WebhookRequest::new(list(&[]), BODY, NOW_MS);
    let missing = SignError::MissingHeader { name: "webhook-id".to_owned() };
    assert_eq!(svix.sign(&secrets, &unsigned), Err(missing));
    assert_eq!(svix.sign(&[], &unsigned), Err(SignError::NoSecret));

    let given = owned([("Webhook-Id", "msg_1".to_owned())]);
    let signed = svix.sign(&secrets, &WebhookRequest::new(list(&given), BODY, NOW_MS)).expect("signed");
    let plain: Vec<(String, String)> = crate::requests::from_signed(signed);
    assert_eq!(plain, standard_headers(&[&secret(CURRENT)]));

    let given = owned([("webhook-id", "msg_1".to_owned()), ("webhook-timestamp", "7".to_owned())]);
    let signed = svix.sign(&secrets, &WebhookRequest::new(list(&given), BODY, NOW_MS)).expect("signed");
    let time = SignedHeader { name: "webhook-timestamp".into(), value: "7".to_owned() };
    assert_eq!(signed[1], time);

    let given = owned([("webhook-id", "msg.1".to_owned())]);
    let refused = svix.sign(&secrets, &WebhookRequest::new(list(&given), BODY, NOW_MS));
    let fault = HeaderFault::FullStop;
    assert_eq!(refused, Err(SignError::MalformedHeader { name: "webhook-id".to_owned(), fault }));
}
