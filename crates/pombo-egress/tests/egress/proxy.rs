//! An explicit egress proxy, with the local check kept.

use std::sync::Arc;

use pombo_domain::attempt::AttemptClass;
use pombo_domain::secret::SecretText;
use pombo_egress::{EgressClient, EgressConfig, EgressProxy, Resolve};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::receiver::{OK, Receiver};
use crate::{ScriptedResolver, config, failure, response, send, url};

fn through(proxy: &Receiver, addresses: &[&'static str]) -> EgressClient {
    let resolver = ScriptedResolver::to(addresses) as Arc<dyn Resolve>;
    let proxy: EgressProxy = format!("http://{}", proxy.at).parse().expect("a proxy");
    let proxy = proxy.with_authorization(SecretText::new("Basic c2VjcmV0".to_owned())).expect("a value");
    EgressClient::new(EgressConfig { resolver, proxy: Some(proxy), ..config() }).expect("a client")
}

/// A proxy that opens the tunnels it is asked for, and tells what it was asked.
async fn tunnelling_proxy() -> (Receiver, mpsc::UnboundedReceiver<String>) {
    let (requests, seen) = mpsc::unbounded_channel();
    let proxy = Receiver::start(move |mut peer| {
        let requests = requests.clone();
        async move {
            let request = peer.read_request().await.expect("a CONNECT");
            let target = request.split(' ').nth(1).expect("a target").to_owned();
            requests.send(request).expect("the test waits for it");
            let mut stream = TcpStream::connect(target).await.expect("the target listens");
            peer.write(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n").await;
            // Either side may end the tunnel in any way.
            let _ = copy_bidirectional(&mut peer.stream, &mut stream).await;
        }
    })
    .await;
    (proxy, seen)
}

#[tokio::test]
async fn requests_go_through_the_proxy_to_the_judged_address() {
    let (proxy, mut seen) = tunnelling_proxy().await;
    let receiver = Receiver::answering(OK).await;
    let client = through(&proxy, &["127.0.0.1"]);
    let exchange = send(&client, &receiver.named("http", "hooks.example")).await;
    assert_eq!(response(&exchange).body, "ok");
    let connect = seen.recv().await.expect("a CONNECT");
    let target = receiver.at;
    let head =
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n");
    assert_eq!(connect, head, "the address, so that the proxy has no name to resolve");
}

#[tokio::test]
async fn the_proxy_is_not_asked_for_refused_addresses() {
    let (proxy, _seen) = tunnelling_proxy().await;
    for address in ["169.254.169.254", "100.64.0.1", "::ffff:0.0.0.0"] {
        let exchange = send(&through(&proxy, &[address]), &url("http://hooks.example/")).await;
        failure(&exchange, AttemptClass::BlockedAddress);
    }
    assert_eq!(proxy.opened(), 0);
}

#[tokio::test]
async fn a_proxy_that_refuses_or_babbles_is_a_connect_failure() {
    for (answer, reason) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".to_owned(), "refused"),
        ("HTTP/1.1 2xx\r\n\r\n".to_owned(), "refused"),
        ("SSH-2.0-x\r\n\r\n".to_owned(), "refused"),
        (format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(10_000)), "refused"),
        ("HTTP/1.1 200 OK\r\n".to_owned(), "broke off"),
    ] {
        let proxy = Receiver::answering_once(answer).await;
        let exchange = send(&through(&proxy, &["127.0.0.1"]), &url("http://hooks.example:8080/")).await;
        assert!(failure(&exchange, AttemptClass::Connect).contains(reason));
    }
}
