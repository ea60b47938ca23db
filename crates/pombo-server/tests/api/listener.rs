//! The accept loop: timers, caps, and ending in order.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::Method;
use pombo_server::{ServeLimits, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::client::{Client, dial};
use crate::harness::{Service, Setup};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn with_limits(limits: ServeLimits) -> Setup {
    Setup { limits, ..Setup::default() }
}

/// Everything that comes until the other side closes.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer is an end like any other.
    let _ = timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn connect(service: &Service, text: &str) -> TcpStream {
    let mut stream = dial(service.address).await;
    stream.write_all(text.as_bytes()).await.expect("written");
    stream
}

#[tokio::test]
async fn a_head_that_does_not_end_is_cut() {
    let service = Service::with(with_limits(ServeLimits { head: SHORT, ..ServeLimits::default() })).await;
    let start = Instant::now();
    let mut silent = connect(&service, "").await;
    let mut slow = connect(&service, "GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    assert_eq!(read_all(&mut silent).await, "");
    assert_eq!(read_all(&mut slow).await, "");
    assert!(start.elapsed() >= SHORT);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let limits = ServeLimits { idle: SHORT, ..ServeLimits::default() };
    let service = Service::with(with_limits(limits)).await;
    let mut stream = connect(&service, "").await;
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
        let mut answer = [0; 1024];
        let read = timeout(LONG, stream.read(&mut answer)).await.expect("in time").expect("an answer");
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let service = Service::with(with_limits(ServeLimits { body: SHORT, ..ServeLimits::default() })).await;
    let key = service.client.key.clone().expect("a key");
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"type\""
    );
    let mut stream = connect(&service, &head).await;
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("/errors/timeout"), "{answer}");
}

#[tokio::test]
async fn a_body_over_the_cap_is_refused_before_it_is_read() {
    let service = Service::start().await;
    let key = service.client.key.clone().expect("a key");
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: 3000000\r\nexpect: 100-continue\r\n\r\n"
    );
    let mut stream = connect(&service, &head).await;
    let mut answer = vec![0; 4096];
    let read = timeout(LONG, stream.read(&mut answer)).await.expect("in time").expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // One that is within the cap is asked for.
    let head = head.replace("3000000", "21");
    let mut stream = connect(&service, &head).await;
    let mut answer = [0; 25];
    timeout(LONG, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 100 Continue"));
    stream.write_all(br#"{"type":"t","data":1}"#).await.expect("written");
    let mut answer = [0; 12];
    timeout(LONG, stream.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 202");
}

#[tokio::test]
async fn the_answer_to_a_body_that_is_too_large_is_not_lost_while_it_is_being_sent() {
    let service = Service::start().await;
    for _ in 0..5 {
        // hyper's client reads the answer only if no reset comes before it.
        let refused = service.client.post("/v1/endpoints", vec![b'x'; 3 * 1024 * 1024]).await;
        assert_eq!(refused.status, 413);
    }
    let key = service.client.key.clone().expect("a key");
    let head = format!(
        "POST /v1/endpoints HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    let mut stream = connect(&service, &head).await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..5 {
        stream.write_all(chunk.as_bytes()).await.expect("written");
    }
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn bodies_in_memory_are_bounded_over_all_requests() {
    let server = ServerConfig { body_bytes_max: 1000, ..ServerConfig::default() };
    let service = Service::with(Setup { server, ..Setup::default() }).await;
    let event = format!(r#"{{"type":"t","data":"{}"}}"#, "x".repeat(1000));
    let refused = service.client.post("/v1/events", event).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), "1");
    for _ in 0..20 {
        let event = format!(r#"{{"type":"t","data":"{}"}}"#, "x".repeat(900));
        assert_eq!(service.client.post("/v1/events", event).await.status, 202);
    }
}

#[tokio::test]
async fn head_answers_as_get_without_a_body() {
    let service = Service::start().await;
    let answer = service.client.send(service.client.request(Method::HEAD, "/v1/events"), "").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.len(), 0);
    assert_ne!(answer.header("content-length"), "0");
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_in_order() {
    let service = Service::start().await;
    let one = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let last = "GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut stream = connect(&service, &format!("{one}{one}{last}")).await;
    let answers = read_all(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3);
    assert!(answers.ends_with(r#"{"status":"ready"}"#), "{answers}");
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_place() {
    let limits = ServeLimits { connections: 1, ..ServeLimits::default() };
    let service = Service::with(with_limits(limits)).await;
    let mut first = connect(&service, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut answer = [0; 12];
    timeout(LONG, first.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    let mut second = connect(&service, "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    let waits = timeout(Duration::from_millis(200), second.read_exact(&mut answer)).await;
    assert!(waits.is_err(), "answered beside the first");
    drop(first);
    assert!(read_all(&mut second).await.contains("HTTP/1.1 200"));
}

#[tokio::test]
async fn ending_lets_a_request_under_way_finish_and_closes_the_rest() {
    let mut service = Service::start().await;
    let key = service.client.key.clone().expect("a key");
    let mut idle = connect(&service, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut answer = [0; 12];
    timeout(LONG, idle.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: 21\r\nexpect: 100-continue\r\n\r\n"
    );
    let mut under_way = connect(&service, &head).await;
    let mut answer = [0; 25];
    timeout(LONG, under_way.read_exact(&mut answer)).await.expect("in time").expect("asked to go on");
    service.stop();
    // The idle one is closed at once: the stop was seen.
    read_all(&mut idle).await;
    under_way.write_all(br#"{"type":"t","data":1}"#).await.expect("written");
    let answer = read_all(&mut under_way).await;
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert_eq!(service.ended().await.cut, 0);
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_at_the_deadline() {
    let limits = ServeLimits { drain: SHORT, ..ServeLimits::default() };
    let mut service = Service::with(with_limits(limits)).await;
    let key = service.client.key.clone().expect("a key");
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: 21\r\nexpect: 100-continue\r\n\r\n"
    );
    let mut under_way = connect(&service, &head).await;
    let mut answer = [0; 25];
    timeout(LONG, under_way.read_exact(&mut answer)).await.expect("in time").expect("asked to go on");
    service.stop();
    assert_eq!(service.ended().await.cut, 1);
    assert_eq!(read_all(&mut under_way).await, "");
}

/// Serves two routes that no API has: one that panics and one that never answers.
async fn serve_bad(limits: ServeLimits) -> std::net::SocketAddr {
    async fn panics() -> &'static str {
        panic!("on purpose")
    }
    let router = Router::new()
        .route("/panics", get(panics))
        .route("/never", get(std::future::pending::<&'static str>));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(pombo_server::serve(listener, router, limits, std::future::pending()));
    address
}

#[tokio::test]
async fn a_handler_that_panics_is_a_500_without_its_reason() {
    let address = serve_bad(ServeLimits::default()).await;
    let client = Client { address, key: None };
    for _ in 0..2 {
        let answer = client.get("/panics").await;
        assert!(answer.header("x-request-id").starts_with("req_"));
        let document = answer.expect(500);
        assert_eq!(document["type"], "/errors/internal");
        assert!(!document.to_string().contains("on purpose"), "{document}");
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_cut() {
    let address = serve_bad(ServeLimits { request: SHORT, ..ServeLimits::default() }).await;
    let mut stream = dial(address).await;
    stream.write_all(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    assert_eq!(read_all(&mut stream).await, "");
}
