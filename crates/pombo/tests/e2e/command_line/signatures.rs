//! `sign` and `verify`.

use serde_json::Value;

use super::Typed;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const BODY: &str = r#"{"a": 12.50, "n":9007199254740993}"#;
const NOW: &str = "1764534120";

async fn signed(provider: &str, extra: &[&str]) -> Vec<String> {
    let words = ["sign", "--provider", provider, "--secret", SECRET, "--body", BODY, "--now", NOW];
    let ended = Typed::words(words.into_iter().chain(extra.iter().copied())).run().await;
    ended.succeeds().lines().map(str::to_owned).collect()
}

async fn verified(provider: &str, headers: &[String], body: &str, extra: &[&str]) -> super::Ended {
    let mut words = vec!["verify", "--provider", provider, "--secret", SECRET, "--body", body, "--now", NOW];
    for header in headers {
        words.extend(["--header", header]);
    }
    words.extend(extra);
    Typed::words(words).run().await
}

#[tokio::test]
async fn what_is_signed_verifies_in_every_style() {
    let id = ["--header", "webhook-id: evt_1"];
    let described = "hmac-sha256 hex {timestamp}.{body} X-Sig timestamp=X-Time";
    let described_extra = ["--header", "X-Time: 1764534120"];
    let styles: [(&str, &[&str]); 3] =
        [("standard-webhooks", &id), ("x-webhook", &[]), (described, &described_extra)];
    for (provider, extra) in styles {
        let mut headers = signed(provider, extra).await;
        if provider == described {
            headers.push("X-Time: 1764534120".to_owned());
        }
        let ended = verified(provider, &headers, BODY, &[]).await;
        assert!(ended.succeeds().starts_with("ok: secret 1"), "{provider}: {ended:?}");

        let ended = verified(provider, &headers, "{}", &[]).await;
        assert_eq!(ended.code, 1, "{provider}: {ended:?}");
        assert_eq!(ended.stdout, "bad: no signature matches the body and the secret\n");
    }
}

#[tokio::test]
async fn an_old_request_is_told_apart_from_a_forged_one() {
    let headers = signed("x-webhook", &[]).await;
    let ended = verified("x-webhook", &headers, BODY, &["--tolerance", "1s", "--json"]).await;
    let ok: Value = serde_json::from_str(ended.succeeds()).expect("JSON");
    assert_eq!((&ok["ok"], &ok["signedAt"]), (&Value::Bool(true), &"2025-11-30T20:22:00.000Z".into()));

    let mut words = vec!["verify", "--provider", "x-webhook", "--secret", SECRET, "--body", BODY, "--json"];
    words.extend(["--now", "1764535120", "--header", &headers[1]]);
    let ended = Typed::words(words).run().await;
    assert_eq!(ended.code, 1);
    let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let reason = document["reason"].as_str().expect("a reason");
    assert!(reason.contains("the signature is right but its timestamp is 1000 s in the past"), "{reason}");
}

#[tokio::test]
async fn explain_says_what_would_match_and_never_shows_the_secret() {
    // Signed with the decoded bytes, as a receiver that follows another scheme might.
    let headers = ["x-webhook-signature: t=1764534120000,v1=0000000000000000000000000000000000000000000000000000000000000000".to_owned()];
    let ended = verified("x-webhook", &headers, BODY, &["--explain"]).await;
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("signatures to check: 1"), "{ended:?}");
    assert!(!ended.stdout.contains(&SECRET[6..]) && !ended.stderr.contains(&SECRET[6..]), "{ended:?}");
}

#[tokio::test]
async fn secrets_and_bodies_come_from_files_variables_and_stdin() {
    let expected = signed("x-webhook", &[]).await;
    let base = format!("sign --provider x-webhook --now {NOW}");
    let from_file = Typed::new(&format!("{base} --secret @s.txt --body @b.json"))
        .file("s.txt", format!("{SECRET}\n").as_bytes())
        .file("b.json", BODY.as_bytes());
    let from_variable =
        Typed::new(&format!("{base} --secret env:S --body -")).env("S", SECRET).stdin(BODY.as_bytes());
    let from_stdin = Typed::new(&format!("{base} --secret - --body @b.json"))
        .file("b.json", BODY.as_bytes())
        .stdin(SECRET.as_bytes());
    for typed in [from_file, from_variable, from_stdin] {
        let ended = typed.run().await;
        assert_eq!(ended.succeeds().lines().collect::<Vec<_>>(), expected);
    }
    let ended = Typed::new(&format!("{base} --secret - --body -")).run().await;
    ended.fails(2, "only one of the secrets and the body can be read from stdin");
}

#[tokio::test]
async fn unknown_providers_and_wrong_schemes_are_usage_errors() {
    let run = |provider| async move {
        Typed::words(["sign", "--provider", provider, "--secret", "s", "--body", "b"]).run().await
    };
    run("nobody").await.fails(2, "known are standard-webhooks, x-webhook");
    run("hmac-md5 hex {body} X-Sig").await.fails(2, "unknown algorithm `hmac-md5`");
    run("standard-webhooks").await.fails(1, "secret number 1 cannot be used");
}
