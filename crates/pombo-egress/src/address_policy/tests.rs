use super::*;

use proptest::prelude::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn rule(text: &str) -> NetPort {
    text.parse().expect("a rule")
}

fn url(text: &str) -> EndpointUrl {
    EndpointUrl::parse(text).expect("a URL")
}

fn strict(text: &str) -> Result<(), Refusal> {
    AddressPolicy::default().classify(ip(text), 443)
}

/// One test per row: the first and last address of the block are refused for that block's reason.
macro_rules! refused {
    ($($name:ident: $what:literal, $($address:literal),+;)+) => {$(
        #[test]
        fn $name() {
            for address in [$($address),+] {
                let refusal = strict(address).expect_err(address).to_string();
                assert!(refusal.contains($what), "{address} {refusal}");
            }
        }
    )+};
}

mod ipv4_refuses {
    use super::*;
    refused! {
        this_network: "0.0.0.0/8", "0.0.0.0", "0.255.255.255";
        private_10: "10.0.0.0/8", "10.0.0.0", "10.255.255.255";
        carrier_grade_nat: "100.64.0.0/10", "100.64.0.0", "100.127.255.255";
        loopback: "127.0.0.0/8", "127.0.0.0", "127.1.2.3", "127.255.255.255";
        link_local: "169.254.0.0/16", "169.254.0.0", "169.254.255.255";
        private_172: "172.16.0.0/12", "172.16.0.0", "172.31.255.255";
        protocol_assignments: "192.0.0.0/24", "192.0.0.0", "192.0.0.255";
        documentation_1: "192.0.2.0/24", "192.0.2.0", "192.0.2.255";
        as112_1: "192.31.196.0/24", "192.31.196.0", "192.31.196.255";
        amt: "192.52.193.0/24", "192.52.193.0", "192.52.193.255";
        relays_of_6to4: "192.88.99.0/24", "192.88.99.0", "192.88.99.255";
        private_192: "192.168.0.0/16", "192.168.0.0", "192.168.255.255";
        as112_2: "192.175.48.0/24", "192.175.48.0", "192.175.48.255";
        benchmarking: "198.18.0.0/15", "198.18.0.0", "198.19.255.255";
        documentation_2: "198.51.100.0/24", "198.51.100.0", "198.51.100.255";
        documentation_3: "203.0.113.0/24", "203.0.113.0", "203.0.113.255";
        multicast: "224.0.0.0/4", "224.0.0.0", "239.255.255.255";
        reserved: "240.0.0.0/4", "240.0.0.0", "254.255.255.255";
        broadcast: "broadcast", "255.255.255.255";
    }
}

mod ipv6_refuses {
    use super::*;
    refused! {
        unspecified: "(::)", "::";
        loopback: "(::1)", "::1";
        compatible: "::/96", "::8.8.8.8", "::dfff:ffff";
        translated: "::ffff:0:0:0/96", "::ffff:0:8.8.8.8";
        nat64: "64:ff9b::/96", "64:ff9b::8.8.8.8";
        local_nat64: "64:ff9b:1::/48", "64:ff9b:1::8.8.8.8", "64:ff9b:1:ffff:ffff:ffff:808:808";
        discard_only: "100::/48", "100::", "100::ffff:ffff:ffff:ffff";
        dummy_prefix: "100::/48", "100:0:0:1::", "100:0:0:1:ffff:ffff:ffff:ffff";
        segment_routing: "5f00::/16", "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        unique_local: "fc00::/7", "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        link_local: "fe80::/10", "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        site_local: "fec0::/10", "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        multicast: "ff00::/8", "ff00::", "ff02::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        everything_else_outside_2000_3: "no part", "1fff:ffff::1", "4000::1", "8000::1", "200::1";
        teredo: "Teredo", "2001::f7f7:f7f7", "2001:0:ffff:ffff:ffff:ffff:f7f7:f7f7";
        benchmarking: "2001:2::/48", "2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff";
        amt: "2001:3::/32", "2001:3::", "2001:3:ffff:ffff:ffff:ffff:ffff:ffff";
        orchid: "2001:10::/28", "2001:10::", "2001:1f:ffff:ffff:ffff:ffff:ffff:ffff";
        orchid_2: "2001::/23", "2001:20::", "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff";
        protocol_assignments: "2001::/23", "2001:1::1", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff";
        documentation_1: "2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff";
        relays_of_6to4: "2002::/16", "2002:808:808::", "2002:808:808:ffff:ffff:ffff:ffff:ffff";
        as112: "2620:4f:8000::/48", "2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff";
        documentation_2: "3fff::/20", "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff";
    }
}

mod embedded_ipv4_is_unwrapped_from {
    use super::*;
    refused! {
        mapped: "10.0.0.0/8", "::ffff:10.0.0.1";
        mapped_unspecified: "0.0.0.0/8", "::ffff:0.0.0.0";
        compatible: "carries an IPv4 address that is in a private network", "::10.0.0.1";
        translated: "carries an IPv4 address that is in a private network", "::ffff:0:10.0.0.1";
        nat64: "carries an IPv4 address that is in a private network", "64:ff9b::a00:1";
        local_nat64: "carries an IPv4 address that is in a private network", "64:ff9b:1::a00:1";
        relays_of_6to4: "carries an IPv4 address that is in a private network", "2002:a00:1::";
        teredo: "carries an IPv4 address that is in a private network", "2001:0:4136:e378:8000:63bf:f5ff:fffe";
        isatap_local: "carries an IPv4 address that is in a private network", "2606:4700::5efe:10.0.0.1";
        isatap_global: "carries an IPv4 address that is in a private network", "2606:4700::200:5efe:10.0.0.1";
        metadata: "metadata", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1";
    }
}

mod metadata_is_refused_of {
    use super::*;
    refused! {
        aws_azure_google: "metadata", "169.254.169.254", "fd00:ec2::254", "fd20:ce::254";
        aws_containers: "metadata", "169.254.170.2", "169.254.170.23", "fd00:ec2::23";
        alibaba: "metadata", "100.100.100.200";
        oracle: "metadata", "192.0.0.192";
        azure_wire_server: "metadata", "168.63.129.16";
    }
}

#[test]
fn public_addresses_next_to_every_block_are_reached() {
    for address in [
        "1.0.0.0",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.0.3.0",
        "192.31.195.0",
        "192.31.197.0",
        "192.52.192.0",
        "192.52.194.0",
        "192.88.98.0",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "192.175.47.0",
        "192.175.49.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.0",
        "198.51.101.0",
        "203.0.112.0",
        "203.0.114.0",
        "223.255.255.255",
        "168.63.129.15",
        "2000::1",
        "2001:200::1",
        "2001:db7::1",
        "2001:db9::1",
        "2003::1",
        "2606:4700::1111",
        "2620:4f:7fff::1",
        "2620:4f:8001::1",
        "3ffe::1",
        "3fff:1000::1",
        "2606:4700::5efe:8.8.8.8",
        "::ffff:8.8.8.8",
    ] {
        assert_eq!(strict(address), Ok(()), "{address}");
    }
}

#[test]
fn a_mapped_address_is_connected_to_as_ipv4() {
    let checked = AddressPolicy::default().check_address(ip("::ffff:8.8.8.8"), 443);
    assert_eq!(checked, Ok(SocketAddr::new(ip("8.8.8.8"), 443)));
}

#[test]
fn dev_opens_this_machine_and_private_networks_but_no_metadata() {
    let dev = AddressPolicy::dev();
    for address in
        ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1", "::ffff:127.0.0.1"]
    {
        assert_eq!(dev.classify(ip(address), 8080), Ok(()), "{address}");
    }
    for address in [
        "169.254.169.254",
        "169.254.1.1",
        "100.100.100.200",
        "fd00:ec2::254",
        "168.63.129.16",
        "0.0.0.0",
        "fe80::1",
    ] {
        assert!(dev.classify(ip(address), 8080).is_err(), "{address}");
    }
}

#[test]
fn allow_rules_open_their_block_and_port_only() {
    let policy =
        AddressPolicy { allow: vec![rule("10.0.0.0/8:9092"), rule("[fd00::/8]:443")], ..Default::default() };
    assert_eq!(policy.classify(ip("10.1.2.3"), 9092), Ok(()), "a rule with a port opens that port too");
    assert_eq!(policy.classify(ip("fd00::1"), 443), Ok(()));
    assert!(policy.classify(ip("10.1.2.3"), 443).is_err());
    assert!(policy.classify(ip("fd00::1"), 8443).is_err());
    assert!(policy.classify(ip("11.1.2.3"), 9092).is_err(), "the port is open for that block alone");
}

#[test]
fn deny_wins_over_allow_and_over_dev() {
    let policy = AddressPolicy {
        allow: vec![rule("10.0.0.0/8")],
        deny: vec![rule("10.0.0.5"), rule("8.8.8.0/24"), rule("127.0.0.1:5433")],
        ..AddressPolicy::dev()
    };
    assert_eq!(policy.classify(ip("10.0.0.4"), 443), Ok(()));
    assert_eq!(policy.classify(ip("127.0.0.1"), 443), Ok(()));
    for (address, port) in [("10.0.0.5", 443), ("8.8.8.8", 443), ("::ffff:8.8.8.8", 443), ("127.0.0.1", 5433)]
    {
        assert_eq!(policy.classify(ip(address), port), Err(Refusal::Denied), "{address}");
    }
}

#[test]
fn metadata_needs_a_rule_for_that_one_address() {
    let wide = AddressPolicy { allow: vec![rule("169.254.0.0/16"), rule("fd00::/8")], ..Default::default() };
    assert_eq!(wide.classify(ip("169.254.169.254"), 80), Err(Refusal::Metadata));
    assert_eq!(wide.classify(ip("fd00:ec2::254"), 80), Err(Refusal::Metadata));
    let exact = AddressPolicy { allow: vec![rule("169.254.169.254/32:80")], ..Default::default() };
    assert_eq!(exact.classify(ip("169.254.169.254"), 80), Ok(()));
    assert!(exact.classify(ip("169.254.169.254"), 443).is_err());
}

#[test]
fn an_allowed_translator_reaches_only_what_ipv4_may_reach() {
    let policy = AddressPolicy { allow: vec![rule("[64:ff9b::/96]:9092")], ..Default::default() };
    assert_eq!(policy.classify(ip("64:ff9b::8.8.8.8"), 9092), Ok(()));
    assert!(matches!(policy.classify(ip("64:ff9b::10.0.0.1"), 9092), Err(Refusal::Embedded(_))));
    assert_eq!(policy.classify(ip("64:ff9b::169.254.169.254"), 9092), Err(Refusal::Metadata));
}

#[test]
fn a_translator_of_this_network_reaches_only_what_ipv4_may_reach() {
    let prefix =
        Nat64Prefix::new("2a00:1:2:3::".parse().expect("an address"), 96).expect("a length of RFC 6052");
    let policy = AddressPolicy { nat64: vec![prefix], ..Default::default() };
    assert_eq!(policy.classify(ip("2a00:1:2:3::8.8.8.8"), 443), Ok(()));
    assert!(matches!(policy.classify(ip("2a00:1:2:3::10.0.0.1"), 443), Err(Refusal::Embedded(_))));
    assert_eq!(policy.classify(ip("2a00:1:2:3::169.254.169.254"), 443), Err(Refusal::Metadata));
    assert_eq!(strict("2a00:1:2:3::10.0.0.1"), Ok(()), "elsewhere it is an address like any other");
}

#[test]
fn ports_of_other_protocols_are_refused() {
    let policy = AddressPolicy::default();
    for port in [80, 443, 8080, 8443, 1024, 3000, 9443, 65535] {
        assert_eq!(policy.classify(ip("8.8.8.8"), port), Ok(()), "{port}");
    }
    for port in [0, 1, 22, 25, 53, 110, 465, 587, 993, 1023, 2049, 5432, 6379, 6667, 11211] {
        assert_eq!(policy.classify(ip("8.8.8.8"), port), Err(Refusal::Port), "{port}");
    }
}

#[test]
fn creation_refuses_what_the_url_alone_shows() {
    for (given, reason) in [
        ("http://example.com/", "https://"),
        ("https://localhost/", "localhost"),
        ("https://a.localhost/", "a.localhost"),
        ("https://printer.local/", "printer.local"),
        ("https://metadata.google.internal/", "metadata.google.internal"),
        ("https://intranet/", "intranet"),
        ("https://LOCALHOST./", "localhost"),
        ("https://ⓛocalhost/", "localhost"),
        ("https://10.0.0.1/", "10.0.0.0/8"),
        ("https://0x7f.1/", "loopback"),
        ("https://2130706433/", "loopback"),
        ("https://0177.0.0.1/", "loopback"),
        ("https://127.0.0.1./", "loopback"),
        ("https://%31%32%37.0.0.1/", "loopback"),
        ("https://０/", "0.0.0.0/8"),
        ("https://169.254.169.254/latest/meta-data/", "metadata"),
        ("https://[::1]/", "loopback"),
        ("https://[::ffff:10.0.0.1]/", "10.0.0.0/8"),
        ("https://[64:ff9b::a00:1]/", "10.0.0.0/8"),
        ("https://[2002:a00:1::]/", "10.0.0.0/8"),
        ("https://example.com:22/", "port 22"),
        ("https://example.com:6379/", "port 6379"),
        ("https://8.8.8.8:25/", "port 25"),
    ] {
        let refusal = AddressPolicy::default().check_url(&url(given)).expect_err(given).to_string();
        assert!(refusal.starts_with("must ") && refusal.contains(reason), "{given}: {refusal}");
    }
}

#[test]
fn creation_takes_public_urls_and_resolves_nothing() {
    for given in [
        "https://example.com/hooks?a=b|c{}`^",
        "https://example.com:8443/%7E\"'<>^`{|}",
        "https://localhost.example.com/",
        "https://internal.example/",
        "https://name-that-does-not-exist.invalid/",
        "https://1.1.1.1/",
        "https://[2606:4700::1111]/",
        "https://münchen.example/",
    ] {
        assert_eq!(AddressPolicy::default().check_url(&url(given)), Ok(()), "{given}");
    }
}

#[test]
fn internal_names_are_taken_where_internal_targets_are_allowed() {
    let rules = AddressPolicy { allow: vec![rule("10.0.0.0/8:443")], ..Default::default() };
    assert_eq!(rules.check_url(&url("https://hooks.svc.cluster.local/")), Ok(()));
    assert!(matches!(rules.check_url(&url("https://192.168.0.1/")), Err(UrlRefusal::Address(_))));
    let dev = AddressPolicy::dev();
    assert_eq!(dev.check_url(&url("http://localhost:3000/hook")), Ok(()));
    assert_eq!(dev.check_url(&url("http://receiver:8000/")), Ok(()));
    assert_eq!(
        dev.check_url(&url("http://169.254.169.254/")),
        Err(UrlRefusal::Address(Refusal::Metadata)),
        "also in --dev"
    );
}

#[test]
fn rules_are_read_and_written_alike() {
    for text in
        ["10.0.0.0/8:443", "10.0.0.0/8", "[fd00::/8]:8443", "fd00::/8", "192.0.2.7/32", "[::1/128]:80"]
    {
        assert_eq!(rule(text).to_string(), text);
    }
    assert_eq!(rule("10.1.2.3/8").to_string(), "10.0.0.0/8", "host bits are cut");
    assert_eq!(
        rule("192.0.2.7:443"),
        NetPort { net: "192.0.2.7/32".parse().expect("a net"), port: Some(443) }
    );
    assert_eq!(rule("[fd00::/8]").port, None);
    for text in
        ["", "10.0.0.0/33", "10.0.0.0/8:0", "10.0.0.0/8:70000", "example.com:443", "[fd00::/8]443", ":443"]
    {
        assert!(text.parse::<NetPort>().is_err(), "{text}");
    }
}

proptest! {
    /// Whatever way an IPv4 address is wrapped, the wrapping never opens what is closed without it.
    #[test]
    fn wrapping_never_opens_a_refused_ipv4_address(bits: u32, prefix in 0x2000_u16..0x4000, seg: u16) {
        let inner = Ipv4Addr::from_bits(bits);
        let policy = AddressPolicy::default();
        let [a, b] = [(bits >> 16) as u16, bits as u16];
        let wrapped = [
            inner.to_ipv6_mapped(),
            Ipv6Addr::from_segments([prefix, seg, 0, 0, 0, 0x5efe, a, b]),
            Ipv6Addr::from_segments([prefix, seg, 0, 0, 0x200, 0x5efe, a, b]),
            Ipv6Addr::from_segments([0, 0, 0, 0, 0xffff, 0, a, b]),
            Ipv6Addr::from_segments([0x64, 0xff9b, 0, 0, 0, 0, a, b]),
            Ipv6Addr::from_segments([0x2002, a, b, seg, 0, 0, 0, 1]),
        ];
        if policy.classify(inner.into(), 443).is_err() {
            for address in wrapped {
                prop_assert!(policy.classify(address.into(), 443).is_err(), "{address} carries {inner}");
            }
        } else {
            prop_assert_eq!(policy.classify(wrapped[0].into(), 443), Ok(()));
        }
    }

    /// Every URL that can be stored has a path that HTTP can carry.
    #[test]
    fn every_stored_url_can_be_sent(path in "\\PC{0,40}", query in "\\PC{0,40}") {
        if let Ok(parsed) = EndpointUrl::parse(&format!("https://example.com/{path}?{query}")) {
            prop_assert_eq!(AddressPolicy::default().check_url(&parsed), Ok(()));
        }
    }
}
