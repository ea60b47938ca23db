//! Every way in which a receiver can take too long ends at the total deadline, or at a phase's limit before.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pombo_domain::attempt::AttemptClass;
use pombo_egress::{EgressClient, EgressConfig, PhaseLimits};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::receiver::Receiver;
use crate::{
    Answer, PATIENCE, ScriptedResolver, client, config, eventually, failure, send, send_with, send_within,
    url,
};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_body_that_drips_for_ever_is_one_attempt_that_timed_out() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await;
        while peer.write(b".").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let exchange = send_within(&client(), &receiver.url(), SHORT).await;
    let message = failure(&exchange, AttemptClass::Timeout);
    assert_eq!(message, "the deadline of 300 ms passed while reading the response body");
    assert!(exchange.phases.first_byte.is_some() && exchange.phases.body.is_some());
    assert!(exchange.duration >= SHORT && exchange.duration < PATIENCE);
    eventually("the connection is closed", || receiver.finished() == 1).await;
    assert_eq!((receiver.opened(), receiver.requests()), (1, 1));
}

#[tokio::test]
async fn a_receiver_that_never_answers_times_out() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.wait_for_close().await;
    })
    .await;
    let exchange = send_within(&client(), &receiver.url(), SHORT).await;
    assert!(failure(&exchange, AttemptClass::Timeout).contains("waiting for the response"));
    assert!(exchange.phases.body.is_none());
    eventually("the connection is closed", || receiver.finished() == 1).await;
}

#[tokio::test]
async fn a_head_that_drips_for_ever_times_out() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.write(b"HTTP/1.1 200 OK\r\nX-A: ").await;
        while peer.write(b"a").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let exchange = send_within(&client(), &receiver.url(), SHORT).await;
    failure(&exchange, AttemptClass::Timeout);
    eventually("the connection is closed", || receiver.finished() == 1).await;
}

#[tokio::test]
async fn interim_responses_without_end_time_out() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        while peer.write(b"HTTP/1.1 100 Continue\r\n\r\n").await {}
    })
    .await;
    let exchange = send_within(&client(), &receiver.url(), SHORT).await;
    failure(&exchange, AttemptClass::Timeout);
    eventually("the connection is closed", || receiver.finished() == 1).await;
}

#[tokio::test]
async fn a_receiver_that_never_reads_does_not_keep_the_socket() {
    let (answered, wait) = tokio::sync::watch::channel(false);
    let receiver = Receiver::start(move |mut peer| {
        let mut wait = wait.clone();
        async move {
            // Reads nothing until the attempt is over, and must then find the connection closed.
            wait.wait_for(|over| *over).await.expect("the test tells when");
            peer.wait_for_close().await;
        }
    })
    .await;
    let body = Bytes::from(vec![b'x'; 32 * 1024 * 1024]);
    let exchange = send_with(&client(), &receiver.url(), body, SHORT).await;
    failure(&exchange, AttemptClass::Timeout);
    answered.send(true).expect("the receiver waits");
    eventually("the connection is closed", || receiver.finished() == 1).await;
    assert_eq!(receiver.requests(), 0);
}

fn with_limits(resolver: Arc<ScriptedResolver>) -> EgressClient {
    let phases = PhaseLimits { dns: SHORT, connect: SHORT, tls: SHORT };
    EgressClient::new(EgressConfig { resolver, phases, ..config() }).expect("a client")
}

#[tokio::test]
async fn resolution_has_its_own_limit() {
    let client = with_limits(ScriptedResolver::new([Answer::Silence]));
    let exchange = send(&client, &url("https://slow.example/")).await;
    assert_eq!(failure(&exchange, AttemptClass::Timeout), "the name did not resolve within 300 ms");
    assert!(exchange.phases.dns.expect("it was reached") >= SHORT);
    assert_eq!(exchange.phases.connect, None);
}

#[tokio::test]
async fn the_total_deadline_covers_resolution() {
    let resolver = ScriptedResolver::new([Answer::Silence]);
    let client = EgressClient::new(EgressConfig { resolver, ..config() }).expect("a client");
    let exchange = send_within(&client, &url("https://slow.example/"), SHORT).await;
    assert!(failure(&exchange, AttemptClass::Timeout).contains("resolving the name"));
}

/// A listener whose queue of connections is full, so that another one is not answered.
async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("a socket address")).expect("loopback has free ports");
    let listener = socket.listen(1).expect("a listener");
    let at = listener.local_addr().expect("a bound listener has an address");
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, TcpStream::connect(at)).await {
        assert!(queued.len() < 64, "the queue never fills");
        queued.push(stream);
    }
    (listener, queued)
}

#[tokio::test]
async fn the_connection_has_its_own_limit() {
    let (listener, _queued) = full_listener().await;
    let client = with_limits(ScriptedResolver::to(&["127.0.0.1"]));
    let at = listener.local_addr().expect("a bound listener has an address");
    let exchange = send(&client, &url(format!("http://{at}/"))).await;
    assert_eq!(failure(&exchange, AttemptClass::Timeout), "no TCP connection within 300 ms");
    assert!(exchange.phases.connect.is_some());
}

#[tokio::test]
async fn an_address_that_never_answers_leaves_time_for_the_next() {
    let (full, _queued) = full_listener().await;
    let port = full.local_addr().expect("a bound listener has an address").port();
    let at = std::net::SocketAddr::new(crate::address("127.0.0.2"), port);
    let receiver = Receiver::start_at(at, |mut peer| async move {
        peer.read_request().await;
        peer.write(crate::receiver::OK).await;
    })
    .await;
    let client = with_limits(ScriptedResolver::to(&["127.0.0.1", "127.0.0.2"]));
    let exchange = send(&client, &receiver.named("http", "two.example")).await;
    assert_eq!(crate::response(&exchange).status, 200);
}

#[tokio::test]
async fn the_handshake_has_its_own_limit() {
    let receiver = Receiver::start(|mut peer| async move { peer.wait_for_close().await }).await;
    let client = with_limits(ScriptedResolver::to(&["127.0.0.1"]));
    let exchange = send(&client, &receiver.named("https", "stalled.example")).await;
    assert_eq!(failure(&exchange, AttemptClass::Timeout), "the TLS handshake did not end within 300 ms");
    eventually("the connection is closed", || receiver.finished() == 1).await;
}

#[tokio::test]
async fn dropping_an_attempt_closes_its_socket() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.wait_for_close().await;
        let _ = peer.stream.shutdown().await;
    })
    .await;
    let (client, url) = (client(), receiver.url());
    let attempt = tokio::spawn(async move { send(&client, &url).await });
    eventually("the request arrives", || receiver.requests() == 1).await;
    attempt.abort();
    eventually("the connection is closed", || receiver.finished() == 1).await;
}
