//! Names that resolve to where they should not (S16).

use std::net::SocketAddr;
use std::sync::Arc;

use pombo_domain::attempt::AttemptClass;
use pombo_egress::{AddressPolicy, EgressClient, EgressConfig, NetPort, Resolve};

use crate::receiver::{OK, Receiver};
use crate::{Answer, ScriptedResolver, config, failure, response, send, url};

/// The strict policy, but for plain HTTP to 127.0.0.1: it stands for the public Internet, and 127.0.0.2 for the
/// internal network.
fn guarded(resolver: &Arc<ScriptedResolver>) -> EgressClient {
    let public: NetPort = "127.0.0.1/32".parse().expect("a rule");
    let policy = AddressPolicy { allow_http: true, allow: vec![public], ..AddressPolicy::default() };
    let resolver = Arc::clone(resolver) as Arc<dyn Resolve>;
    EgressClient::new(EgressConfig { policy, resolver, ..config() }).expect("a client")
}

/// A receiver on 127.0.0.1 and another on 127.0.0.2, on the same port.
async fn public_and_internal() -> (Receiver, Receiver) {
    let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let public = Receiver::answering_once(answer).await;
    let at = SocketAddr::new(crate::address("127.0.0.2"), public.at.port());
    let internal = Receiver::start_at(at, |mut peer| async move {
        peer.read_request().await;
        peer.write(OK).await;
    })
    .await;
    (public, internal)
}

#[tokio::test]
async fn a_name_that_is_rebound_between_two_attempts_is_refused() {
    let (public, internal) = public_and_internal().await;
    let answers = ["127.0.0.1", "127.0.0.2", "127.0.0.1"].map(|address| Answer::Addresses(vec![address]));
    let resolver = ScriptedResolver::new(answers);
    let client = guarded(&resolver);
    let url = public.named("http", "rebinding.example");
    assert_eq!(response(&send(&client, &url).await).status, 200);
    failure(&send(&client, &url).await, AttemptClass::BlockedAddress);
    assert_eq!(response(&send(&client, &url).await).status, 200);
    assert_eq!((resolver.asked(), public.requests(), internal.opened()), (3, 2, 0));
}

#[tokio::test]
async fn the_address_is_judged_that_is_connected_to() {
    let (public, internal) = public_and_internal().await;
    // Were the name resolved a second time on the way to the socket, it would go to the internal receiver.
    let answers = ["127.0.0.1", "127.0.0.2"].map(|address| Answer::Addresses(vec![address]));
    let resolver = ScriptedResolver::new(answers);
    let exchange = send(&guarded(&resolver), &public.named("http", "rebinding.example")).await;
    assert_eq!(response(&exchange).status, 200);
    assert_eq!((resolver.asked(), public.requests(), internal.opened()), (1, 1, 0));
}

#[tokio::test]
async fn one_refused_address_refuses_the_whole_answer() {
    let (public, internal) = public_and_internal().await;
    for answer in [
        ["127.0.0.1", "127.0.0.2"],
        ["127.0.0.2", "127.0.0.1"],
        ["127.0.0.1", "169.254.169.254"],
        ["127.0.0.1", "fd00:ec2::254"],
    ] {
        let client = guarded(&ScriptedResolver::to(&answer));
        let exchange = send(&client, &public.named("http", "many.example")).await;
        failure(&exchange, AttemptClass::BlockedAddress);
    }
    assert_eq!((public.opened(), internal.opened()), (0, 0));
}

#[tokio::test]
async fn wrapped_forms_of_a_refused_address_are_refused() {
    let (public, internal) = public_and_internal().await;
    for wrapped in [
        "::ffff:127.0.0.2",
        "::127.0.0.2",
        "::ffff:0:127.0.0.2",
        "64:ff9b::7f00:2",
        "64:ff9b:1::7f00:2",
        "2002:7f00:2::",
        "2001:0:4136:e378:8000:63bf:80ff:fffd",
        "2606:4700::5efe:127.0.0.2",
        "0.0.0.0",
        "::",
        "::1",
    ] {
        let client = guarded(&ScriptedResolver::to(&[wrapped]));
        let exchange = send(&client, &public.named("http", "wrapped.example")).await;
        failure(&exchange, AttemptClass::BlockedAddress);
    }
    assert_eq!((public.opened(), internal.opened()), (0, 0));
}

#[tokio::test]
async fn a_mapped_form_of_an_allowed_address_is_reached_over_ipv4() {
    let (public, _internal) = public_and_internal().await;
    let client = guarded(&ScriptedResolver::to(&["::ffff:127.0.0.1"]));
    let exchange = send(&client, &public.named("http", "mapped.example")).await;
    assert_eq!(response(&exchange).status, 200);
}

#[tokio::test]
async fn literal_addresses_do_not_get_round_the_check() {
    let (public, internal) = public_and_internal().await;
    let port = public.at.port();
    let resolver = ScriptedResolver::to(&["127.0.0.1"]);
    let client = guarded(&resolver);
    for host in
        ["127.0.0.2", "0x7f.2", "2130706434", "[::ffff:127.0.0.2]", "[::1]", "[::]", "0", "[64:ff9b::7f00:2]"]
    {
        let exchange = send(&client, &url(format!("http://{host}:{port}/"))).await;
        failure(&exchange, AttemptClass::BlockedAddress);
    }
    assert_eq!((resolver.asked(), public.opened(), internal.opened()), (0, 0, 0));
}

#[tokio::test]
async fn a_stored_url_is_judged_again_at_every_attempt() {
    let receiver = Receiver::answering(OK).await;
    let policy = AddressPolicy { allow_http: false, ..AddressPolicy::dev() };
    let client = EgressClient::new(EgressConfig { policy, ..config() }).expect("a client");
    let exchange = send(&client, &receiver.url()).await;
    assert!(failure(&exchange, AttemptClass::BlockedAddress).contains("must begin with https"));
    assert_eq!(receiver.opened(), 0);
}

#[tokio::test]
async fn a_message_about_a_long_name_is_bounded() {
    let policy = AddressPolicy::default();
    let client = EgressClient::new(EgressConfig { policy, ..config() }).expect("a client");
    let exchange = send(&client, &url(format!("https://{}/", "a".repeat(1500)))).await;
    assert!(failure(&exchange, AttemptClass::BlockedAddress).contains("must not name the internal host"));
}

#[tokio::test]
async fn metadata_is_refused_with_private_targets_allowed() {
    let resolver = ScriptedResolver::to(&["169.254.169.254"]);
    let client = EgressClient::new(EgressConfig { resolver, ..config() }).expect("a client");
    for target in ["http://metadata.google.internal/", "http://169.254.169.254/", "http://[fd00:ec2::254]/"] {
        failure(&send(&client, &url(target)).await, AttemptClass::BlockedAddress);
    }
}

#[tokio::test]
async fn localhost_is_loopback_without_a_question_to_dns() {
    let receiver = Receiver::answering(OK).await;
    // The system's resolver: IPv4 is tried first, and the receiver listens there only.
    for name in ["localhost", "hooks.localhost"] {
        let exchange = send(&crate::client(), &receiver.named("http", name)).await;
        assert_eq!(response(&exchange).status, 200, "{name}");
    }
}
