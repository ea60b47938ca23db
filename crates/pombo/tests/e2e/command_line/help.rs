//! Help and exit codes.

use super::Typed;

#[tokio::test]
async fn help_of_every_command_is_as_reviewed() {
    for command in [
        "serve",
        "migrate",
        "check",
        "send",
        "endpoints",
        "endpoints create",
        "endpoints rotate-secret",
        "events",
        "deliveries",
        "deliveries list",
        "dead",
        "dead retry",
        "listen",
        "sign",
        "verify",
    ] {
        let ended = Typed::new(&format!("{command} --help")).run().await;
        assert_eq!(ended.stderr, "");
        insta::assert_snapshot!(format!("help {command}"), ended.succeeds());
    }
}

#[tokio::test]
async fn every_command_shows_examples() {
    for command in [
        "",
        "serve",
        "migrate",
        "check",
        "send",
        "endpoints",
        "events",
        "deliveries",
        "dead",
        "listen",
        "sign",
        "verify",
    ] {
        let ended = Typed::new(&format!("{command} --help")).run().await;
        let help = ended.succeeds();
        assert!(help.contains("Examples:\n  "), "{command}: {help}");
    }
}

#[tokio::test]
async fn version_goes_to_stdout() {
    let ended = Typed::new("--version").run().await;
    assert_eq!(ended.succeeds().trim(), concat!("pombo ", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn wrong_usage_exits_with_2_and_says_nothing_on_stdout() {
    for line in [
        "",
        "nonsense",
        "send",
        "send order.paid --wait soon",
        "send order.paid --nonsense",
        "deliveries list --status lost",
        "deliveries list --limit 251",
        "endpoints nonsense",
        "endpoints pause",
        "dead retry",
        "dead retry --all dlv_1",
        "listen --status 99",
        "listen --tenant acme",
        "sign --provider x-webhook --body x",
        "verify --secret x --body x",
        "serve --outbox postgres://x",
    ] {
        let ended = Typed::new(line).run().await;
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{line}: {ended:?}");
        assert_ne!(ended.stderr, "", "{line}");
    }
}

#[tokio::test]
async fn trigger_is_send() {
    let ended = Typed::new("trigger order.paid --server http://127.0.0.1:1").run().await;
    ended.fails(1, "cannot reach the server at http://127.0.0.1:1");
}
