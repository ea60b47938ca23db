//! What is made of the answers that receivers give.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pombo_domain::attempt::AttemptClass;
use pombo_domain::limits::RESPONSE_BYTES_MAX;
use tokio::sync::mpsc;

use crate::receiver::{OK, Receiver};
use crate::{client, failure, response, send, send_with};

#[tokio::test]
async fn the_request_is_sent_as_given_with_host_and_length() {
    let (requests, mut seen) = mpsc::unbounded_channel();
    let receiver = Receiver::start(move |mut peer| {
        let requests = requests.clone();
        async move {
            let request = peer.read_request().await.expect("a request");
            requests.send(request).expect("the test waits for it");
            peer.write(OK).await;
        }
    })
    .await;
    let exchange = send(&client(), &receiver.url()).await;
    assert_eq!(response(&exchange).body, "ok");
    let request = seen.recv().await.expect("a request was read").to_ascii_lowercase();
    assert!(request.starts_with("post /hooks?token=secret http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {}\r\n", receiver.at)), "{request}");
    assert!(request.contains("content-length: 8\r\n"), "{request}");
    assert!(request.contains("content-type: application/json\r\n"), "{request}");
    assert!(!request.contains("accept-encoding"), "nothing compressed is asked for: {request}");
    assert!(request.ends_with("\r\n\r\n{\"id\":1}"), "{request}");
}

#[tokio::test]
async fn an_empty_body_is_sent_with_its_length() {
    let receiver = Receiver::answering(OK).await;
    let exchange = send_with(&client(), &receiver.url(), bytes::Bytes::new(), crate::PATIENCE).await;
    assert_eq!(response(&exchange).status, 200);
}

#[tokio::test]
async fn every_status_is_given_its_class() {
    for (status, class) in [
        (200, AttemptClass::Success),
        (204, AttemptClass::Success),
        (304, AttemptClass::Redirect),
        (400, AttemptClass::ClientError),
        (408, AttemptClass::ClientError),
        (410, AttemptClass::Gone),
        (429, AttemptClass::RateLimited),
        (503, AttemptClass::ServerError),
        (999, AttemptClass::ServerError),
    ] {
        let receiver = Receiver::answering(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")).await;
        let exchange = send(&client(), &receiver.url()).await;
        assert_eq!((exchange.outcome.status(), exchange.outcome.class()), (Some(status), class));
    }
}

#[tokio::test]
async fn a_redirect_is_recorded_and_not_followed() {
    let login = Receiver::answering(OK).await;
    for target in
        [format!("http://{}/login", login.at), "http://169.254.169.254/latest/meta-data/".to_owned()]
    {
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n");
        let receiver = Receiver::answering(head).await;
        let exchange = send(&client(), &receiver.url()).await;
        assert_eq!(exchange.outcome.class(), AttemptClass::Redirect);
        assert_eq!(response(&exchange).location.as_deref(), Some(target.as_str()));
        assert_eq!((receiver.requests(), login.opened()), (1, 0));
    }
}

#[tokio::test]
async fn a_location_is_kept_lossily_and_bounded() {
    let mut head =
        b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: https://x.example/\xff\xe9?".to_vec();
    head.extend_from_slice("é".repeat(4000).as_bytes());
    head.extend_from_slice(b"\r\n\r\n");
    let receiver = Receiver::answering(head).await;
    let exchange = send(&client(), &receiver.url()).await;
    let location = response(&exchange).location.as_deref().expect("a location");
    assert!(location.starts_with("https://x.example/\u{fffd}\u{fffd}?é"), "{location}");
    assert!((2040..=2048).contains(&location.len()), "{}", location.len());
}

#[tokio::test]
async fn headers_with_odd_bytes_do_not_lose_the_status() {
    let head = b"HTTP/1.1 429 \xe9\xff\r\nContent-Type: \xe9\xff; charset=\x80\r\nX-Odd: \xc3\x28\r\nbad name: x\r\n\
                 X-Control: a\x01b\r\nno colon\r\nRetry-After: \xff 7\r\nContent-Length: 3\r\n\r\n\xff\xfe!";
    let receiver = Receiver::answering(head).await;
    let exchange = send(&client(), &receiver.url()).await;
    let response = response(&exchange);
    assert_eq!(response.status, 429);
    assert_eq!(response.retry_after.as_deref(), Some(&b"\xff 7"[..]), "raw: the policy judges it");
    assert_eq!(&response.body[..], b"\xff\xfe!");
}

#[tokio::test]
async fn two_gigabytes_after_a_200_are_a_success_and_are_not_read() {
    const CHUNK: usize = 64 * 1024;
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    let receiver = Receiver::start(move |mut peer| {
        let written = Arc::clone(&counter);
        async move {
            peer.read_request().await;
            peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n").await;
            let chunk = vec![b'x'; CHUNK];
            for _ in 0..(2 * 1024 * 1024 * 1024_usize / CHUNK) {
                if !peer.write(&chunk).await {
                    break;
                }
                written.fetch_add(CHUNK, Ordering::SeqCst);
            }
        }
    })
    .await;
    let client = client();
    let exchange = send(&client, &receiver.url()).await;
    let response = response(&exchange);
    assert_eq!(exchange.outcome.class(), AttemptClass::Success);
    assert_eq!((response.body.len(), response.truncated), (RESPONSE_BYTES_MAX, true));
    crate::eventually("the connection is closed", || receiver.finished() == 1).await;
    let sent = written.load(Ordering::SeqCst);
    assert!(sent < 64 * 1024 * 1024, "only what fits the buffers of the sockets was taken, not {sent}");
    assert_eq!(client.idle_connections(), 0);
}

#[tokio::test]
async fn compressed_bytes_are_kept_as_they_came() {
    // What 50 KB of gzip inflates to is never learned.
    let mut answer =
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 51200\r\n\r\n\x1f\x8b\x08\0".to_vec();
    answer.resize(answer.len() + 51_196, 0);
    let receiver = Receiver::answering(answer).await;
    let exchange = send(&client(), &receiver.url()).await;
    let response = response(&exchange);
    assert_eq!((response.status, response.truncated), (200, true));
    assert_eq!(&response.body[..4], b"\x1f\x8b\x08\0");
    assert_eq!(response.body.len(), RESPONSE_BYTES_MAX);
}

#[tokio::test]
async fn a_body_of_exactly_the_cap_is_whole() {
    for framing in ["Content-Length: 8192\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n2000\r\n"] {
        let mut answer = format!("HTTP/1.1 500 X\r\n{framing}").into_bytes();
        answer.resize(answer.len() + RESPONSE_BYTES_MAX, b'x');
        if framing.contains("chunked") {
            answer.extend_from_slice(b"\r\n0\r\n\r\n");
        }
        let receiver = Receiver::answering(answer).await;
        let client = client();
        let exchange = send(&client, &receiver.url()).await;
        let response = response(&exchange);
        assert_eq!((response.body.len(), response.truncated), (RESPONSE_BYTES_MAX, false), "{framing}");
        crate::eventually("the connection is kept", || client.idle_connections() == 1).await;
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_the_status_in_force() {
    for framing in [
        "Content-Length: 100\r\n\r\nten bytes.",
        "Transfer-Encoding: chunked\r\n\r\na\r\nten bytes.\r\nZZ\r\n",
    ] {
        let receiver = Receiver::answering_once(format!("HTTP/1.1 200 OK\r\n{framing}")).await;
        let exchange = send(&client(), &receiver.url()).await;
        let response = response(&exchange);
        assert_eq!(
            (response.status, &response.body[..], response.truncated),
            (200, &b"ten bytes."[..], true)
        );
    }
}

#[tokio::test]
async fn a_body_that_ends_with_the_connection_is_whole() {
    let receiver = Receiver::answering_once("HTTP/1.0 202 Accepted\r\n\r\nthanks").await;
    let exchange = send(&client(), &receiver.url()).await;
    let response = response(&exchange);
    assert_eq!((response.status, &response.body[..], response.truncated), (202, &b"thanks"[..], false));
}

#[tokio::test]
async fn a_head_over_its_limits_is_too_large() {
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X-A: b\r\n".repeat(64));
    let long = format!("HTTP/1.1 200 OK\r\nX-A: {}\r\n\r\n", "b".repeat(70 * 1024));
    let endless = format!("HTTP/1.1 200 OK\r\nX-A: {}", "b".repeat(1024 * 1024));
    for head in [many, long, endless] {
        let receiver = Receiver::answering(head).await;
        let exchange = send(&client(), &receiver.url()).await;
        assert!(failure(&exchange, AttemptClass::TooLarge).contains("64 KiB"));
    }
}

#[tokio::test]
async fn a_head_at_its_limits_is_read() {
    let head = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X-A: b\r\n".repeat(63));
    let receiver = Receiver::answering(head).await;
    assert_eq!(response(&send(&client(), &receiver.url()).await).status, 200);
}

#[tokio::test]
async fn answers_that_are_not_http_are_resets() {
    for answer in
        ["SSH-2.0-OpenSSH_9.9\r\n", "<html>hello</html>", "HTTP/9.9 200 OK\r\n\r\n", "HTTP/1.1 2 X\r\n\r\n"]
    {
        let receiver = Receiver::answering_once(answer).await;
        let exchange = send(&client(), &receiver.url()).await;
        failure(&exchange, AttemptClass::Reset);
    }
}

#[tokio::test]
async fn interim_responses_are_passed_over() {
    let answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::answering(answer).await;
    assert_eq!(response(&send(&client(), &receiver.url()).await).status, 200);
}
