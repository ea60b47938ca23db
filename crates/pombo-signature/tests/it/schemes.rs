//! Reading the line that describes a generic scheme.

use pombo_signature::{GenericScheme, Provider, ProviderSecret, SchemeError, VerifyError, WebhookRequest};

use crate::requests::{from_signed, list, owned};

#[test]
fn the_wrong_word_is_named() {
    for (text, want) in [
        ("", SchemeError::TooFewWords),
        ("sha256 hex {body}", SchemeError::TooFewWords),
        ("md5 hex {body} X-Sig", SchemeError::UnknownAlgorithm("md5".to_owned())),
        ("sha256 base32 {body} X-Sig", SchemeError::UnknownEncoding("base32".to_owned())),
        ("sha256 hex {nonce}{body} X-Sig", SchemeError::UnknownField("nonce".to_owned())),
        ("sha256 hex {body X-Sig", SchemeError::UnbalancedBraces),
        ("sha256 hex body} X-Sig", SchemeError::UnbalancedBraces),
        ("sha256 hex {timestamp} X-Sig", SchemeError::NoBody),
        ("sha256 hex {body} X/Sig", SchemeError::InvalidHeaderName("X/Sig".to_owned())),
        ("sha256 hex {body}{header:} X-Sig", SchemeError::InvalidHeaderName(String::new())),
        ("sha256 hex {body} X-Sig key=rot13", SchemeError::UnknownSetting("key=rot13".to_owned())),
        (&"x".repeat(1_025), SchemeError::TooLong),
    ] {
        assert_eq!(GenericScheme::parse(text).expect_err("a wrong scheme"), want, "{text}");
    }
}

#[test]
fn an_explicit_prefix_is_needed_and_the_usual_one_is_dropped() {
    let secrets = [ProviderSecret::new("secret")];
    let verify = |scheme: &str, value: &str| {
        let headers = owned([("X-Sig", value.to_owned())]);
        let scheme = GenericScheme::parse(scheme).expect("a good scheme");
        scheme.verify(&secrets, &WebhookRequest::new(list(&headers), b"{\"a\": \"z\"}", 0)).is_ok()
    };
    let hex = "f417af3a21bd70379b5796d5f013915e7029f62c580fb0f500f59a35a6f04c89";
    let plain = "sha256 hex {body} X-Sig";
    let prefixed = "sha256 hex {body} X-Sig:v0=";
    assert!(verify(plain, hex));
    assert!(verify(plain, &hex.to_uppercase()));
    assert!(verify(plain, &format!("sha256={hex}")));
    assert!(verify(plain, &format!("sha256={}, sha256={hex}", hex.replace('f', "e"))));
    assert!(!verify(plain, &format!("v0={hex}")));
    assert!(verify(prefixed, &format!("v0={hex}")));
    assert!(!verify(prefixed, hex));
}

#[test]
fn keys_ids_and_times_come_from_where_the_scheme_says() {
    let line = "sha256 base64 {id}.{timestamp}.{body} X-Sig id=X-Id timestamp=X-Time key=base64";
    let scheme = GenericScheme::parse(line).expect("a good scheme");
    let secrets = [ProviderSecret::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")];
    let body = b"{\"email\":\"test@example.com\",\"username\":\"test_user\"}";
    let given = owned([("x-id", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk".to_owned())]);
    let unsigned = WebhookRequest::new(list(&given), body, 1_649_367_553_000);
    let headers = from_signed(scheme.sign(&secrets, &unsigned).expect("signed"));
    // The published signature of Standard Webhooks: the line describes the same scheme.
    let want = owned([
        ("x-id", given[0].1.clone()),
        ("x-time", "1649367553".to_owned()),
        ("x-sig", "tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=".to_owned()),
    ]);
    assert_eq!(headers, want);
    let verified = scheme.verify(&secrets, &WebhookRequest::new(list(&headers), body, 1_649_367_700_000));
    assert_eq!(verified.map(|verified| verified.timestamp_ms), Ok(Some(1_649_367_553_000)));
    let late = scheme.verify(&secrets, &WebhookRequest::new(list(&headers), body, 1_649_367_900_000));
    assert!(matches!(late, Err(VerifyError::TimestampTooOld { .. })));
}

#[test]
fn a_time_in_milliseconds_is_known_by_its_size() {
    let scheme = GenericScheme::parse("sha256 hex {timestamp}.{body} X-Sig").expect("a good scheme");
    let secrets = [ProviderSecret::new("secret")];
    let given = owned([("webhook-timestamp", "1649367553123".to_owned())]);
    let unsigned = WebhookRequest::new(list(&given), b"{}", 0);
    let headers = from_signed(scheme.sign(&secrets, &unsigned).expect("signed"));
    let verified = scheme.verify(&secrets, &WebhookRequest::new(list(&headers), b"{}", 1_649_367_553_200));
    assert_eq!(verified.map(|verified| verified.timestamp_ms), Ok(Some(1_649_367_553_123)));
}
