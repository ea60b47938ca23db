//! Every row of `vectors/` comes out as it says.

use pombo_signature::{
    Algorithm, GenericScheme, HmacKey, Provider, ProviderSecret, Signer, SigningSecret, provider, standard,
    x_webhook,
};
use serde::Deserialize;

use crate::requests::{CURRENT, NOW_MS, OLD, RequestVector, rows, secret};

const RFC_4231: &str = include_str!("../../vectors/rfc4231.json");
const STANDARD: &str = include_str!("../../vectors/standard-webhooks.json");
const X_WEBHOOK: &str = include_str!("../../vectors/x-webhook.json");
const GENERIC: &str = include_str!("../../vectors/generic.json");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HmacVector {
    id: String,
    key_hex: String,
    message_hex: String,
    sha256_hex: String,
}

fn from_hex(text: &str) -> Vec<u8> {
    ProviderSecret::new(text).key(pombo_signature::KeyForm::Hex).expect("hexadecimal").to_vec()
}

#[test]
fn hmac_sha256_agrees_with_rfc_4231() {
    let vectors: Vec<HmacVector> = rows(RFC_4231);
    assert_eq!(vectors.len(), 7);
    for vector in vectors {
        let key = HmacKey::new(Algorithm::Sha256, &from_hex(&vector.key_hex));
        let message = from_hex(&vector.message_hex);
        let want = from_hex(&vector.sha256_hex);
        let (head, tail) = message.split_at(message.len() / 2);
        // Twice, and in two pieces: the state of the key must survive its use.
        for parts in [&[message.as_slice()][..], &[head, tail][..]] {
            let tag = key.tag(parts);
            assert_eq!(&tag.as_bytes()[..want.len()], want, "{}", vector.id);
        }
    }
}

fn check_rows(provider: &dyn Provider, vectors: &[RequestVector]) {
    assert!(vectors.iter().any(|vector| vector.valid), "{} needs a good row", provider.name());
    for vector in vectors {
        let verdict = provider.verify(&[ProviderSecret::new(&*vector.secret)], &vector.request());
        assert_eq!(verdict.is_ok(), vector.valid, "{}: {verdict:?}", vector.id);
    }
}

#[test]
fn standard_webhooks_rows_come_out_as_they_say() {
    let vectors: Vec<RequestVector> = rows(STANDARD);
    assert_eq!(vectors.len(), 4);
    check_rows(provider("standard-webhooks").expect("known"), &vectors);
    for vector in vectors.iter().filter(|vector| vector.valid) {
        let signer = Signer::new(&secret(&vector.secret));
        let verified = standard::verify(&[&signer], &vector.request()).expect("a good row");
        assert_eq!(verified.timestamp_ms, Some(vector.now * 1_000));
    }
}

#[test]
fn x_webhook_rows_come_out_as_they_say() {
    let vectors: Vec<RequestVector> = rows(X_WEBHOOK);
    assert_eq!(vectors.len(), 16);
    check_rows(provider("x-webhook").expect("known"), &vectors);
    for vector in &vectors {
        let signer = Signer::new(&secret(&vector.secret));
        let verdict = x_webhook::verify(&[&signer], &vector.request());
        assert_eq!(verdict.is_ok(), vector.valid, "{}: {verdict:?}", vector.id);
    }
}

#[test]
fn generic_rows_come_out_as_they_say_and_are_signed_alike() {
    let vectors: Vec<RequestVector> = rows(GENERIC);
    assert_eq!(vectors.len(), 6);
    for vector in vectors {
        let scheme = GenericScheme::parse(vector.scheme.as_deref().expect("a scheme in each row"))
            .expect("a good scheme");
        check_rows(&scheme, std::slice::from_ref(&vector));
        let signed =
            scheme.sign(&[ProviderSecret::new(&*vector.secret)], &vector.request()).expect("can be signed");
        let value = &signed.last().expect("a signature").value;
        assert!(vector.headers.values().any(|given| given.ends_with(value.as_str())), "{}", vector.id);
    }
}

fn row(json: &str, id: &str) -> RequestVector {
    rows::<RequestVector>(json).into_iter().find(|vector| vector.id == id).expect("a row of that id")
}

#[test]
fn standard_signature_is_the_published_one_and_the_current_secret_stands_first() {
    let vector = row(STANDARD, "standard-v1");
    let (current, old) = (secret(CURRENT), secret(OLD));
    let id = &vector.headers["webhook-id"];
    let sign = |secrets: &[&SigningSecret]| standard::sign(secrets, id, vector.now, vector.body.as_bytes());
    let published = &vector.headers["webhook-signature"];
    assert_eq!(&sign(&[&current]), published);
    assert_eq!(sign(&[&current, &old]), format!("{published} {}", sign(&[&old])));
    assert_eq!(sign(&[]), "");
    let signers = [&Signer::new(&current), &Signer::new(&old)];
    assert_eq!(
        standard::sign_with(&signers, id, vector.now, vector.body.as_bytes()),
        sign(&[&current, &old])
    );
}

#[test]
fn x_webhook_signature_is_the_computed_one_and_the_old_secret_stands_first() {
    let vector = row(X_WEBHOOK, "x-webhook-rotation");
    let (current, old) = (secret(CURRENT), secret(OLD));
    let want = &vector.headers["X-Webhook-Signature"];
    assert_eq!(&x_webhook::sign(&[&current, &old], NOW_MS, vector.body.as_bytes()), want);
    let signers = [&Signer::new(&current), &Signer::new(&old)];
    let headers = x_webhook::headers(&signers, "evt_1", NOW_MS, vector.body.as_bytes());
    assert_eq!(
        headers,
        [
            ("x-webhook-id", "evt_1".to_owned()),
            ("x-webhook-timestamp", NOW_MS.to_string()),
            ("x-webhook-signature", want.clone()),
        ]
    );
}
