use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Answer, Receiver, Script};

const SOON: Duration = Duration::from_secs(10);

/// Sends one request and reads until the receiver closes.
async fn exchange(receiver: &Receiver, path: &str, id: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(receiver.address()).await?;
    stream.write_all(request(path, id, body, "close").as_bytes()).await?;
    let mut answer = Vec::new();
    timeout(SOON, stream.read_to_end(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn request(path: &str, id: &str, body: &str, connection: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nwebhook-id: {id}\r\nconnection: {connection}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn request_is_recorded_as_it_came() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    let answer = exchange(&receiver, "/hook?a=1", "evt_1", "{ \"n\": 1.50 }").await?;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let hits = receiver.hits_at("/hook");
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0].method, "POST");
    assert_eq!(hits[0].query.as_deref(), Some("a=1"));
    assert_eq!(hits[0].body.as_ref(), b"{ \"n\": 1.50 }");
    assert_eq!(hits[0].webhook_id(), Some("evt_1"));
    assert_eq!(hits[0].json()?["n"], 1.5);
    Ok(())
}

#[tokio::test]
async fn sequence_ends_with_its_last_answer_and_ids_are_counted() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    receiver.script(
        "/a",
        Script::sequence([Answer::status(503), Answer::status(429).header("retry-after", "7")]),
    );
    let first = exchange(&receiver, "/a", "evt_1", "").await?;
    let second = exchange(&receiver, "/a", "evt_1", "").await?;
    let third = exchange(&receiver, "/a", "evt_2", "").await?;
    assert!(first.starts_with("HTTP/1.1 503"), "{first}");
    for later in [second, third] {
        assert!(later.starts_with("HTTP/1.1 429") && later.contains("retry-after: 7\r\n"), "{later}");
    }
    assert_eq!(receiver.counts(), [("evt_1".to_owned(), 2), ("evt_2".to_owned(), 1)].into());
    Ok(())
}

#[tokio::test]
async fn closure_sees_the_request_and_paths_have_their_own_scripts() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    receiver.script("/echo", Script::by(|hit| Answer::status(202).body(hit.body.clone())));
    receiver.script_others(Answer::redirect(302, "http://elsewhere/").into());
    let echo = exchange(&receiver, "/echo", "evt_1", "same").await?;
    assert!(echo.contains("content-length: 4\r\n") && echo.ends_with("\r\n\r\nsame"), "{echo}");
    let other = exchange(&receiver, "/other", "evt_1", "").await?;
    assert!(
        other.starts_with("HTTP/1.1 302") && other.contains("location: http://elsewhere/\r\n"),
        "{other}"
    );
    Ok(())
}

#[tokio::test]
async fn closed_answers_nothing_but_the_request_was_taken() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    receiver.script_others(Answer::closed().into());
    assert_eq!(exchange(&receiver, "/", "evt_1", "x").await?, "");
    assert_eq!(receiver.hits().len(), 1);
    Ok(())
}

#[tokio::test]
async fn never_holds_the_connection_until_the_other_side_hangs_up() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    receiver.script_others(Answer::never().into());
    let mut stream = TcpStream::connect(receiver.address()).await?;
    stream.write_all(request("/", "evt_1", "", "keep-alive").as_bytes()).await?;
    receiver.wait_for(SOON, |hits| hits.len() == 1).await.expect("the request is recorded");
    assert_eq!(receiver.open(), 1);
    drop(stream);
    receiver.wait_for_open(0, SOON).await.expect("the receiver sees the hang-up");
    Ok(())
}

#[tokio::test]
async fn dripped_body_comes_whole_and_in_time() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    let pace = Duration::from_millis(20);
    receiver.script_others(Answer::status(200).body("abcdef").dripping(pace).into());
    let since = std::time::Instant::now();
    let answer = exchange(&receiver, "/", "evt_1", "").await?;
    // The first byte comes at once, five follow.
    assert!(since.elapsed() >= pace * 5, "{:?}", since.elapsed());
    let letters: String = answer.split("\r\n").filter(|line| line.len() == 1 && *line > "9").collect();
    assert_eq!(letters, "abcdef");
    Ok(())
}

#[tokio::test]
async fn huge_body_is_made_on_the_way_and_has_its_length() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    let length = 10 * 1024 * 1024;
    let answer = Answer::status(200).header("content-length", length.to_string()).filled(length);
    receiver.script_others(answer.into());
    let answer = exchange(&receiver, "/", "evt_1", "").await?;
    let (_, body) = answer.split_once("\r\n\r\n").expect("the answer has a head");
    assert_eq!(body.len() as u64, length);
    Ok(())
}

#[tokio::test]
async fn cut_body_lacks_its_end() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    receiver.script_others(Answer::status(200).body("half").cut().into());
    let answer = exchange(&receiver, "/", "evt_1", "").await?;
    assert!(answer.contains("half"), "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "the last chunk must be missing: {answer}");
    Ok(())
}

#[tokio::test]
async fn stopped_receiver_refuses_and_restarts_on_its_port() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    exchange(&receiver, "/", "evt_1", "").await?;
    let mut idle = TcpStream::connect(receiver.address()).await?;
    receiver.wait_for_open(1, SOON).await.expect("the connection is accepted");
    receiver.stop().await;
    assert_eq!(timeout(SOON, idle.read(&mut [0; 1])).await??, 0, "open connections are closed");
    assert!(TcpStream::connect(receiver.address()).await.is_err());
    receiver.restart().await?;
    exchange(&receiver, "/", "evt_2", "").await?;
    assert_eq!(receiver.hits().len(), 2, "hits from before are kept");
    Ok(())
}

#[tokio::test]
async fn reused_connection_keeps_its_number() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    let mut stream = TcpStream::connect(receiver.address()).await?;
    for count in 1..=2 {
        stream.write_all(request("/", "evt_1", "", "keep-alive").as_bytes()).await?;
        receiver.wait_for(SOON, |hits| hits.len() == count).await.expect("the request arrives");
    }
    exchange(&receiver, "/", "evt_1", "").await?;
    let connections: Vec<u64> = receiver.hits().iter().map(|hit| hit.connection).collect();
    assert_eq!(connections, [0, 0, 1]);
    assert_eq!(receiver.accepted(), 2);
    Ok(())
}

#[tokio::test]
async fn request_that_breaks_off_is_no_hit() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    let mut stream = TcpStream::connect(receiver.address()).await?;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nhalf").await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    timeout(SOON, stream.read_to_end(&mut answer)).await??;
    receiver.wait_for_open(0, SOON).await.expect("the connection is closed");
    assert_eq!((receiver.hits().len(), receiver.broken()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn vain_wait_says_what_came_instead() -> std::io::Result<()> {
    let receiver = Receiver::start().await?;
    exchange(&receiver, "/only", "evt_1", "").await?;
    let error = receiver
        .wait_for(Duration::from_millis(50), |hits| hits.len() == 2)
        .await
        .expect_err("only one request was sent");
    assert!(error.to_string().contains("1 hits [POST /only]"), "{error}");
    Ok(())
}
