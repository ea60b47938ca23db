//! What holds for all bytes.

use pombo_signature::{
    GenericScheme, HeaderList, Provider, ProviderSecret, Signer, SigningSecret, VerifyError, WebhookRequest,
    provider, standard, x_webhook,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::requests::{list, owned};

const SCHEME: &str =
    "hmac-sha512 base64 {id}.{timestamp}.{header:x-extra}.{body} x-sig id=x-id timestamp=x-time";

fn secrets() -> impl Strategy<Value = SigningSecret> {
    any::<[u8; 32]>().prop_map(SigningSecret::from_random)
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

/// Anything up to the year 5138, in milliseconds.
fn times_ms() -> impl Strategy<Value = i64> {
    0..100_000_000_000_000_i64
}

/// Header values of any bytes, some of them close to the real thing.
fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..80),
        "(t|v1|v0|v1a)?[=,. ]{0,2}[0-9a-f+/=]{0,90}".prop_map(String::into_bytes),
        "(t=[0-9]{0,22},?)?(v1=[0-9a-fA-F]{60,66},?){0,3}".prop_map(String::into_bytes),
        "(v1,[A-Za-z0-9+/]{43}=,? ?){0,40}".prop_map(String::into_bytes),
        "[0-9]{0,25}".prop_map(String::into_bytes),
    ]
}

fn flipped(bytes: &[u8], at: prop::sample::Index, mask: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = at.index(bytes.len());
    bytes[at] ^= mask;
    bytes
}

proptest! {
    #[test]
    fn every_secret_verifies_what_it_signed(
        (current, old) in (secrets(), secrets()), id in "[!-+/-~]{1,40}", now_ms in times_ms(), body in bodies(),
    ) {
        let signers = [&Signer::new(&current), &Signer::new(&old)];
        for headers in [
            owned(standard::headers(&signers, &id, now_ms / 1_000, &body)),
            owned(x_webhook::headers(&signers, &id, now_ms, &body)),
        ] {
            let request = WebhookRequest::new(list(&headers), &body, now_ms);
            for (index, signer) in signers.iter().enumerate() {
                let verify = if headers[0].0 == "webhook-id" { standard::verify } else { x_webhook::verify };
                let verified = verify(&[signer], &request).expect("signed with this secret");
                prop_assert_eq!(verified.id.as_deref(), Some(id.as_str()));
                let both = verify(&signers, &request).expect("signed with both");
                prop_assert_eq!(both.secret_index, 0, "secret {} alone verifies too", index);
            }
        }
    }

    #[test]
    fn a_generated_secret_reads_back(secret in secrets()) {
        let again = SigningSecret::parse(secret.as_shown()).expect("what is shown can be read");
        prop_assert_eq!(again.as_shown(), secret.as_shown());
    }

    #[test]
    fn no_text_makes_the_secret_parser_panic(text in any::<String>(), tail in "[A-Za-z0-9+/=_ -]{0,100}") {
        let _ = SigningSecret::parse(&text);
        let tail = format!("whsec_{tail}");
        if let Ok(secret) = SigningSecret::parse(&tail) {
            prop_assert_eq!(secret.as_shown(), tail);
        }
    }

    #[test]
    fn a_single_changed_byte_of_a_standard_request_fails(
        secret in secrets(), body in vec(any::<u8>(), 1..100),
        which in 0..4_usize, at in any::<prop::sample::Index>(), mask in 1..=255_u8,
    ) {
        let signer = Signer::new(&secret);
        let mut headers: Vec<(&str, Vec<u8>)> = standard::headers(&[&signer], "msg_1", 1_649_367_553, &body)
            .into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
        let mut changed_body = body.clone();
        match headers.get_mut(which) {
            Some((_, value)) => *value = flipped(value, at, mask),
            None => changed_body = flipped(&body, at, mask),
        }
        let list: HeaderList<'_> = headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let request = WebhookRequest::new(list, &changed_body, 1_649_367_553_000);
        prop_assert!(standard::verify(&[&signer], &request).is_err());
    }

    #[test]
    fn a_single_changed_byte_of_an_x_webhook_request_fails(
        secret in secrets(), body in vec(any::<u8>(), 1..100),
        // From 1: the id is not signed in this style.
        which in 1..4_usize, at in any::<prop::sample::Index>(), mask in 1..=255_u8,
    ) {
        let signer = Signer::new(&secret);
        let mut headers: Vec<(&str, Vec<u8>)> = x_webhook::headers(&[&signer], "evt_1", 1_649_367_553_123, &body)
            .into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
        let mut changed_body = body.clone();
        match headers.get_mut(which) {
            Some((_, value)) => *value = flipped(value, at, mask),
            None => changed_body = flipped(&body, at, mask),
        }
        let list: HeaderList<'_> = headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let request = WebhookRequest::new(list, &changed_body, 1_649_367_553_123);
        prop_assert!(x_webhook::verify(&[&signer], &request).is_err());
    }

    #[test]
    fn no_headers_make_a_provider_panic_or_accept(
        values in vec((0..10_usize, values()), 0..8), body in bodies(), now_ms in any::<i64>(), secret in secrets(),
    ) {
        const NAMES: [&str; 10] = [
            "webhook-id", "webhook-timestamp", "webhook-signature", "svix-signature", "svix-id",
            "x-webhook-id", "X-Webhook-Timestamp", "x-webhook-signature", "x-sig", "x-time",
        ];
        let headers = values.iter().map(|(name, value)| (NAMES[*name], value.as_slice())).collect();
        let request = WebhookRequest::new(headers, &body, now_ms);
        let generic = GenericScheme::parse(SCHEME).expect("a good scheme");
        let secrets = [ProviderSecret::new("short"), ProviderSecret::from(&secret)];
        let named = pombo_signature::providers().iter().copied();
        for provider in named.chain([&generic as &dyn Provider]) {
            prop_assert!(provider.verify(&secrets[1..], &request).is_err());
            prop_assert!(provider.explain(&secrets, &request).starts_with(provider.name()));
        }
    }

    #[test]
    fn no_text_makes_the_scheme_parser_panic(
        text in any::<String>(), template in "[{}a-z:.]{1,20}", header in "[A-Za-z:=-]{1,12}",
    ) {
        let _ = GenericScheme::parse(&text);
        let _ = GenericScheme::parse(&format!("sha256 hex {template} {header}"));
    }

    #[test]
    fn the_tolerance_is_the_same_on_both_sides(secret in secrets(), signed_at in 10_000..5_000_000_000_i64, off in -400..=400_i64) {
        let signer = Signer::new(&secret);
        let headers = owned(standard::headers(&[&signer], "msg_1", signed_at, b"{}"));
        let request = WebhookRequest::new(list(&headers), b"{}", (signed_at + off) * 1_000);
        match standard::verify(&[&signer], &request) {
            Ok(_) => prop_assert!(off.abs() <= 300),
            Err(VerifyError::TimestampTooOld { age }) => {
                prop_assert!(off > 300);
                prop_assert_eq!(age.as_secs(), off.unsigned_abs());
            }
            Err(VerifyError::TimestampTooNew { ahead }) => {
                prop_assert!(off < -300);
                prop_assert_eq!(ahead.as_secs(), off.unsigned_abs());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn a_provider_verifies_what_it_signed(secret in secrets(), now_ms in times_ms(), body in bodies()) {
        let secrets = [ProviderSecret::from(&secret)];
        let given = owned(["webhook-id", "x-id", "x-extra"].map(|name| (name, "some-value".to_owned())));
        let generic = GenericScheme::parse(SCHEME).expect("a good scheme");
        let names = ["standard-webhooks", "x-webhook"].map(|name| provider(name).expect("known"));
        for provider in names.into_iter().chain([&generic as &dyn Provider]) {
            let unsigned = WebhookRequest::new(list(&given), &body, now_ms);
            let mut headers = crate::requests::from_signed(provider.sign(&secrets, &unsigned).expect("can be signed"));
            headers.extend(given.iter().cloned());
            let request = WebhookRequest::new(list(&headers), &body, now_ms);
            let verdict = provider.verify(&secrets, &request);
            prop_assert!(verdict.is_ok(), "{}: {:?}", provider.name(), verdict);
        }
    }
}
