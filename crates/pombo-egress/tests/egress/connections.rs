//! Connections: made, kept, closed at the wrong moment.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pombo_domain::attempt::AttemptClass;
use pombo_egress::{EgressClient, EgressConfig, PoolLimits};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::receiver::{OK, Receiver};
use crate::{
    Answer, PATIENCE, ScriptedResolver, client, config, eventually, failure, response, send, send_with, url,
};

fn with_pool(pool: PoolLimits) -> EgressClient {
    EgressClient::new(EgressConfig { pool, ..config() }).expect("a client")
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let receiver = Receiver::answering(OK).await;
    let client = client();
    let first = send(&client, &receiver.url()).await;
    assert!(
        first.phases.connect.is_some() && first.phases.first_byte.is_some() && first.phases.body.is_some()
    );
    assert_eq!((first.phases.dns, first.phases.tls), (None, None), "a literal address over plain HTTP");
    for _ in 0..3 {
        eventually("the connection is kept", || client.idle_connections() == 1).await;
        let next = send(&client, &receiver.url()).await;
        assert_eq!(response(&next).status, 200);
        assert_eq!(next.phases.connect, None, "nothing was connected");
        assert!(next.phases.first_byte.is_some());
    }
    assert_eq!((receiver.opened(), receiver.requests()), (1, 4));
}

#[tokio::test]
async fn connections_are_not_shared_between_origins() {
    let receiver = Receiver::answering(OK).await;
    let resolver = ScriptedResolver::to(&["127.0.0.1"]);
    let client = EgressClient::new(EgressConfig { resolver, ..config() }).expect("a client");
    for name in ["a.example", "b.example"] {
        assert_eq!(response(&send(&client, &receiver.named("http", name)).await).status, 200);
    }
    assert_eq!(receiver.opened(), 2);
}

#[tokio::test]
async fn an_answer_that_closes_is_believed() {
    let receiver =
        Receiver::answering("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
    let client = client();
    for _ in 0..2 {
        assert_eq!(response(&send(&client, &receiver.url()).await).status, 200);
        assert_eq!(client.idle_connections(), 0);
    }
    assert_eq!(receiver.opened(), 2);
}

#[tokio::test]
async fn a_kept_connection_closed_while_idle_is_replaced() {
    let receiver = Receiver::answering_once(OK).await;
    let client = client();
    for round in 1..=2 {
        assert_eq!(response(&send(&client, &receiver.url()).await).status, 200);
        eventually("the receiver closes", || receiver.finished() == round).await;
        eventually("the close is seen", || client.idle_connections() == 0).await;
    }
    assert_eq!((receiver.opened(), receiver.requests()), (2, 2));
}

#[tokio::test]
async fn a_kept_connection_closed_under_a_request_is_a_reset_and_nothing_is_sent_twice() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.write(OK).await;
        peer.read_request().await;
    })
    .await;
    let client = client();
    assert_eq!(response(&send(&client, &receiver.url()).await).status, 200);
    eventually("the connection is kept", || client.idle_connections() == 1).await;
    let exchange = send(&client, &receiver.url()).await;
    assert!(failure(&exchange, AttemptClass::Reset).contains("kept connection"));
    assert_eq!((receiver.opened(), receiver.requests()), (1, 2));
}

#[tokio::test]
async fn connections_closed_before_an_answer_are_resets() {
    let silent = Receiver::answering_once("").await;
    let broken_off = Receiver::answering_once("HTTP/1.1 200 OK\r\nContent-").await;
    let unread = Receiver::start(|_| async {}).await;
    let half_closed = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.stream.shutdown().await.expect("the sender is still there");
        peer.wait_for_close().await;
    })
    .await;
    let reset = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.stream.set_zero_linger().expect("a TCP socket");
    })
    .await;
    for receiver in [silent, broken_off, unread, half_closed, reset] {
        let exchange = send(&client(), &receiver.url()).await;
        failure(&exchange, AttemptClass::Reset);
        assert_eq!(receiver.opened(), 1, "nothing is sent again by itself");
    }
}

#[tokio::test]
async fn an_answer_from_a_half_closed_connection_counts() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.read_request().await;
        peer.write(OK).await;
        peer.stream.shutdown().await.expect("the sender is still there");
        peer.wait_for_close().await;
    })
    .await;
    assert_eq!(response(&send(&client(), &receiver.url()).await).status, 200);
}

#[tokio::test]
async fn an_answer_before_the_whole_request_was_read_counts_and_the_rest_arrives() {
    let receiver = Receiver::start(|mut peer| async move {
        peer.write(OK).await;
        peer.read_request().await;
        peer.wait_for_close().await;
    })
    .await;
    let body = Bytes::from(vec![b'x'; 8 * 1024 * 1024]);
    let exchange = send_with(&client(), &receiver.url(), body, PATIENCE).await;
    assert_eq!(response(&exchange).status, 200);
    eventually("the rest of the request arrives", || receiver.requests() == 1).await;
}

#[tokio::test]
async fn a_refused_connection_is_a_connect_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let at = listener.local_addr().expect("a bound listener has an address");
    drop(listener);
    let exchange = send(&client(), &url(format!("http://{at}/?token=secret"))).await;
    assert_eq!(failure(&exchange, AttemptClass::Connect), "the receiver refused the connection");
    assert!(exchange.phases.connect.is_some());
    assert_eq!(exchange.phases.first_byte, None);
}

#[tokio::test]
async fn the_next_address_is_tried_after_a_refused_connection() {
    let receiver = Receiver::answering(OK).await;
    // The receiver listens on 127.0.0.1 alone.
    let resolver = ScriptedResolver::to(&["127.0.0.3", "127.0.0.1"]);
    let client = EgressClient::new(EgressConfig { resolver, ..config() }).expect("a client");
    assert_eq!(response(&send(&client, &receiver.named("http", "two.example")).await).status, 200);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_dns_failure() {
    for answer in [Answer::Failure, Answer::Addresses(Vec::new())] {
        let resolver = ScriptedResolver::new([answer]);
        let client = EgressClient::new(EgressConfig { resolver: Arc::clone(&resolver) as _, ..config() });
        let exchange = send(&client.expect("a client"), &url("https://nowhere.example/?token=1")).await;
        failure(&exchange, AttemptClass::Dns);
        assert!(exchange.phases.dns.is_some());
        assert_eq!(resolver.asked(), 1);
    }
}

#[tokio::test]
async fn idle_connections_are_closed_by_age() {
    let receiver = Receiver::answering(OK).await;
    let client = with_pool(PoolLimits { idle: Duration::from_millis(200), ..PoolLimits::default() });
    send(&client, &receiver.url()).await;
    eventually("the connection is closed without another request", || receiver.finished() == 1).await;
    assert_eq!(response(&send(&client, &receiver.url()).await).status, 200);
    assert_eq!(receiver.opened(), 2);
}

#[tokio::test]
async fn busy_connections_are_retired_by_age() {
    let receiver = Receiver::answering(OK).await;
    let client = with_pool(PoolLimits { age: Duration::ZERO, ..PoolLimits::default() });
    for _ in 0..2 {
        assert_eq!(response(&send(&client, &receiver.url()).await).status, 200);
    }
    assert_eq!(receiver.opened(), 2);
}

#[tokio::test]
async fn idle_connections_are_bounded_in_all_and_the_longest_idle_goes_first() {
    let receivers =
        [Receiver::answering(OK).await, Receiver::answering(OK).await, Receiver::answering(OK).await];
    let client = with_pool(PoolLimits { total: 2, ..PoolLimits::default() });
    for (count, receiver) in [1, 2, 2].into_iter().zip(&receivers) {
        send(&client, &receiver.url()).await;
        eventually("the connection is kept", || client.idle_connections() == count).await;
    }
    eventually("the first is closed", || receivers[0].finished() == 1).await;
    assert_eq!((receivers[1].finished(), receivers[2].finished()), (0, 0));
}

#[tokio::test]
async fn idle_connections_are_bounded_per_host() {
    let receiver = Receiver::answering(OK).await;
    let client = with_pool(PoolLimits { per_host: 2, ..PoolLimits::default() });
    let url = receiver.url();
    let sends = (0..6).map(|_| {
        let (client, url) = (client.clone(), url.clone());
        tokio::spawn(async move { send(&client, &url).await })
    });
    for attempt in sends.collect::<Vec<_>>() {
        assert_eq!(response(&attempt.await.expect("the attempt did not panic")).status, 200);
    }
    eventually("all but two are closed", || receiver.opened() - receiver.finished() == 2).await;
    assert_eq!(receiver.requests(), 6);
}
