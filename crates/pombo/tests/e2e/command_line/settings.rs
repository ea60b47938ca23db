//! Settings from file, environment and flags.

use super::{Ended, Typed};

async fn with_file(toml: &str) -> Ended {
    Typed::new("check").file("pombo.toml", toml.as_bytes()).run().await
}

#[tokio::test]
async fn unknown_settings_are_errors_that_name_the_nearest() {
    with_file("[delivery]\ntimout = \"5s\"\n")
        .await
        .fails(1, "pombo.toml: `delivery.timout` is no setting; did you mean `delivery.timeout`?");
    let ended = Typed::new("check").env("POMBO_LEASE__TLL", "45s").run().await;
    ended.fails(1, "POMBO_LEASE__TLL: `lease.tll` is no setting; did you mean `lease.ttl`?");
    let ended = Typed::new("check").env("POMBO_LISTNE", "x").run().await;
    ended.fails(1, "POMBO_LISTNE: `listne` is no setting; did you mean `listen`?");
}

#[tokio::test]
async fn wrong_values_name_setting_and_place() {
    with_file("lease = 5\n").await.fails(1, "pombo.toml: `lease` must be ");
    with_file("lease.ttl = \"soon\"\n")
        .await
        .fails(1, "pombo.toml: `lease.ttl` must be a whole number followed by");
    with_file("roles = [\"sender\"]\n")
        .await
        .fails(1, "pombo.toml: `roles` must be some of api, relay, deliver");
    with_file("not toml").await.fails(1, "pombo.toml: ");
    let ended = Typed::new("check").env("POMBO_DELIVERY__TIMEOUT", "5").run().await;
    ended.fails(1, "POMBO_DELIVERY__TIMEOUT: `delivery.timeout` must be a duration such as");
    let ended = Typed::new("serve --listen nowhere").run().await;
    ended.fails(1, "--listen: `listen` must be an address and a port");
    let ended = Typed::new("check --config other.toml").run().await;
    ended.fails(1, "there is no file other.toml");
}

#[tokio::test]
async fn variables_win_over_the_file_and_flags_over_both() {
    let typed = |line: &str| Typed::new(line).file("pombo.toml", b"listen = \"file\"");
    typed("serve")
        .run()
        .await
        .fails(1, "pombo.toml: `listen` must be an address and a port such as 127.0.0.1:8080, not \"file\"");
    typed("serve").env("POMBO_LISTEN", "variable").run().await.fails(1, "POMBO_LISTEN: `listen`");
    typed("serve --listen flag").env("POMBO_LISTEN", "variable").run().await.fails(1, "--listen: `listen`");
}

#[tokio::test]
async fn variables_of_a_kubernetes_service_named_pombo_are_no_settings() {
    let mut typed = Typed::new("check --database sqlite:nowhere.db");
    for (name, value) in [
        ("POMBO_SERVICE_HOST", "10.0.0.1"),
        ("POMBO_SERVICE_PORT", "8080"),
        ("POMBO_SERVICE_PORT_HTTP", "8080"),
        ("POMBO_PORT", "tcp://10.0.0.1:8080"),
        ("POMBO_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ] {
        typed = typed.env(name, value);
    }
    typed.run().await.fails(1, "nowhere.db does not exist");
}
