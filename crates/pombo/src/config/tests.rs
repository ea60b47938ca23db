use figment::providers::Serialized;

use super::*;

fn load(toml: &str) -> Result<Settings, String> {
    let figment = Figment::from(Toml::string(toml));
    let document: Document = figment
        .extract()
        .map_err(|error| complaint::about(&error).sentence().expect("a complaint is said"))?;
    checked(document)
        .map_err(|complaint| complaint.with_source(&figment).sentence().expect("a complaint is said"))
}

#[test]
fn every_setting_is_read() {
    let settings = load(
        r#"
        listen = "127.0.0.1:9999"
        database = "sqlite:x.db"
        roles = ["api", "deliver"]
        master_key_file = "/run/key"
        [lease]
        ttl = "60s"
        [delivery]
        timeout = "5s"
        slots = 64
        user_agent = "Shop/1"
        [retry]
        schedule = ["0s", "1m"]
        jitter = { percent = 10 }
        [egress]
        allow_http = true
        allow = ["10.0.0.0/8:443"]
        deny = "192.0.2.0/24, 198.51.100.7"
        ca_file = "/etc/ca.pem"
        [log]
        format = "json"
        level = "debug"
        [shutdown]
        grace = "10s"
        [postgres]
        pooling = "transaction"
        "#,
    )
    .expect("good settings");
    assert_eq!(settings.roles, Roles { api: true, relay: false, deliver: true });
    assert_eq!(settings.lease_ttl, Duration::from_secs(60));
    assert_eq!((settings.timeout, settings.slots), (Duration::from_secs(5), 64));
    assert_eq!(settings.retry.attempts(), 2);
    assert_eq!((settings.egress.allow.len(), settings.egress.deny.len()), (1, 2));
    assert_eq!(settings.log.format, LogFormat::Json);
    assert!(settings.is_pooled && settings.listen.is_loopback());
}

#[test]
fn defaults_need_no_file() {
    let settings = load("").expect("defaults");
    assert_eq!(settings.listen.text, "127.0.0.1:8080");
    assert_eq!(settings.roles, Roles { api: true, relay: true, deliver: true });
    assert_eq!(settings.retry, RetryPolicy::default());
    assert_eq!(settings.lease_ttl, limits::LEASE_TTL_DEFAULT);
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (toml, wanted) in [
        ("[delivery]\ntimout = \"5s\"", "`delivery.timout` is no setting; did you mean `delivery.timeout`?"),
        ("lisen = \"x\"", "`lisen` is no setting; did you mean `listen`?"),
        ("[log]\ncolour = 1", "`log.colour` is no setting; known are `log.format`, `log.level`"),
        ("[retry]\nschedul = []", "`retry.schedul` is no setting; did you mean `retry.schedule`?"),
    ] {
        let sentence = load(toml).expect_err("refused");
        assert!(sentence.ends_with(wanted), "{sentence}");
    }
}

#[test]
fn wrong_values_name_the_setting() {
    for (toml, wanted) in [
        ("[lease]\nttl = 45", "`lease.ttl` must be a duration such as \"30s\""),
        ("[lease]\nttl = \"45\"", "`lease.ttl` must be a whole number followed by"),
        ("roles = \"api,sender\"", "`roles` must be some of api, relay, deliver"),
        ("roles = []", "`roles` must name at least one"),
        ("[egress]\nallow = [\"everything\"]", "`egress.allow` is wrong"),
        ("[retry]\nschedule = []", "`retry` `schedule` must have 1 to 50 entries"),
        ("listen = \"8080\"", "`listen` must be an address and a port"),
        ("[delivery]\nuser_agent = \"a\\nb\"", "`delivery.user_agent` must be visible ASCII"),
        ("[log]\nformat = \"xml\"", "`log.format` must be text or json"),
    ] {
        let sentence = load(toml).expect_err("refused");
        assert!(sentence.contains(wanted), "{sentence}");
    }
}

#[test]
fn flags_win_and_are_named() {
    let figment =
        Figment::from(Toml::string("listen = \"127.0.0.1:1\"")).merge(Serialized::default("listen", "x"));
    let document: Document = figment.extract().expect("readable");
    let sentence = checked(document).expect_err("refused").with_source(&figment).sentence();
    assert!(sentence.is_some_and(|sentence| sentence.contains("\"x\"")));
}
