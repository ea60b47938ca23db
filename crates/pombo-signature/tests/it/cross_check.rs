//! Our signatures and those of the official `standardwebhooks` library are the same.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use pombo_signature::{Signer, SigningSecret, VerifyError, WebhookRequest, standard};
use standardwebhooks::Webhook;

use crate::requests::{CURRENT, OLD, list, owned, secret};

/// The official library reads the system's clock, so this test has to as well.
fn now_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(now.as_secs()).expect("the clock is before the year 292 billion")
}

fn official(secret: &SigningSecret) -> Webhook {
    Webhook::new(secret.as_shown()).expect("the official library takes our secrets")
}

const BODIES: [&str; 4] = ["", "{}", "{\"nome\":\"João\",\"preço\":\"R$ 10\"}", "not json\n"];

#[test]
fn what_we_sign_the_official_library_verifies() {
    let (current, old) = (secret(CURRENT), secret(OLD));
    let signers = [&Signer::new(&current), &Signer::new(&old)];
    for body in BODIES {
        let mut headers = HeaderMap::new();
        for (name, value) in standard::headers(&signers, "msg_1", now_seconds(), body.as_bytes()) {
            let value = HeaderValue::try_from(value).expect("a header value");
            headers.insert(HeaderName::from_static(name), value);
        }
        for secret in [&current, &old] {
            official(secret).verify(body.as_bytes(), &headers).expect("signed with either secret");
        }
        let stranger = secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX");
        official(&stranger).verify(body.as_bytes(), &headers).expect_err("not signed with this one");
    }
}

#[test]
fn what_the_official_library_signs_we_verify() {
    let current = secret(CURRENT);
    let signer = Signer::new(&current);
    let now = now_seconds();
    for body in BODIES {
        let signature = official(&current).sign("msg_1", now, body.as_bytes()).expect("can be signed");
        let headers = owned([
            ("webhook-id", "msg_1".to_owned()),
            ("webhook-timestamp", now.to_string()),
            ("webhook-signature", signature),
        ]);
        let request = WebhookRequest::new(list(&headers), body.as_bytes(), now * 1_000);
        standard::verify(&[&signer], &request).expect("signed with this secret");
        let verdict = standard::verify(&[&Signer::new(&secret(OLD))], &request);
        assert_eq!(verdict, Err(VerifyError::NoMatch));
    }
}
