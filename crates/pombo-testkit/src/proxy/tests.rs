use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Direction, Fault, FaultProxy};

const SOON: Duration = Duration::from_secs(10);
/// How long a test watches that something does not happen.
const WHILE: Duration = Duration::from_millis(100);

/// A proxy with one connection through it: the client's end and the server's.
async fn connected() -> io::Result<(FaultProxy, TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = FaultProxy::start(listener.local_addr()?).await?;
    let client = TcpStream::connect(proxy.address()).await?;
    let (server, _) = timeout(SOON, listener.accept()).await??;
    Ok((proxy, client, server))
}

async fn receive(stream: &mut TcpStream, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    timeout(SOON, stream.read_exact(&mut bytes)).await??;
    Ok(bytes)
}

/// The stream ends with a reset, not with an orderly end.
async fn assert_reset(stream: &mut TcpStream) -> io::Result<()> {
    let error = timeout(SOON, stream.read(&mut [0; 16])).await?.expect_err("the connection is reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    Ok(())
}

#[tokio::test]
async fn without_faults_bytes_and_ends_pass_both_ways() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    client.write_all(b"question").await?;
    assert_eq!(receive(&mut server, 8).await?, b"question");
    client.shutdown().await?;
    assert_eq!(timeout(SOON, server.read(&mut [0; 1])).await??, 0);
    server.write_all(b"answer").await?;
    drop(server);
    let mut answer = Vec::new();
    timeout(SOON, client.read_to_end(&mut answer)).await??;
    assert_eq!(answer, b"answer");
    assert_eq!((proxy.passed(Direction::ToServer), proxy.passed(Direction::ToClient)), (8, 6));
    Ok(())
}

#[tokio::test]
async fn latency_delays_its_direction_alone() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    let latency = Duration::from_millis(80);
    proxy.set(Direction::ToClient, Fault::Latency(latency));
    let since = Instant::now();
    server.write_all(b"x").await?;
    receive(&mut client, 1).await?;
    assert!(since.elapsed() >= latency, "{:?}", since.elapsed());
    proxy.set(Direction::ToClient, Fault::None);
    proxy.set(Direction::ToServer, Fault::Latency(SOON * 2));
    server.write_all(b"y").await?;
    assert_eq!(receive(&mut client, 1).await?, b"y");
    Ok(())
}

#[tokio::test]
async fn blackhole_holds_bytes_until_it_is_healed() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    proxy.set_both(Fault::Blackhole);
    client.write_all(b"held").await?;
    assert!(timeout(WHILE, server.read(&mut [0; 4])).await.is_err(), "nothing passes");
    proxy.heal();
    assert_eq!(receive(&mut server, 4).await?, b"held");
    Ok(())
}

#[tokio::test]
async fn drip_lets_a_few_bytes_pass_at_a_time() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    let every = Duration::from_millis(20);
    proxy.set(Direction::ToServer, Fault::Drip { bytes: 2, every });
    let since = Instant::now();
    client.write_all(b"12345678").await?;
    assert_eq!(receive(&mut server, 8).await?, b"12345678");
    assert!(since.elapsed() >= every * 4, "{:?}", since.elapsed());
    Ok(())
}

#[tokio::test]
async fn half_close_ends_one_direction_and_keeps_the_other() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    proxy.set(Direction::ToServer, Fault::HalfClose);
    assert_eq!(timeout(SOON, server.read(&mut [0; 1])).await??, 0);
    server.write_all(b"still").await?;
    assert_eq!(receive(&mut client, 5).await?, b"still");
    Ok(())
}

#[tokio::test]
async fn cut_lets_exactly_so_many_bytes_pass_and_resets_both_sides() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    proxy.set(Direction::ToServer, Fault::CutAfter(5));
    client.write_all(b"12345").await?;
    assert_eq!(receive(&mut server, 5).await?, b"12345");
    assert_reset(&mut server).await?;
    assert_reset(&mut client).await?;
    assert_eq!(proxy.passed(Direction::ToServer), 5);
    Ok(())
}

#[tokio::test]
async fn reset_reaches_open_connections_at_once() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    proxy.set(Direction::ToClient, Fault::Reset);
    assert_reset(&mut client).await?;
    assert_reset(&mut server).await?;
    Ok(())
}

#[tokio::test]
async fn down_refuses_new_connections_until_healed() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = FaultProxy::start(listener.local_addr()?).await?;
    proxy.down();
    let mut refused = TcpStream::connect(proxy.address()).await?;
    assert_eq!(timeout(SOON, refused.read(&mut [0; 1])).await??, 0);
    proxy.heal();
    let mut client = TcpStream::connect(proxy.address()).await?;
    let (mut server, _) = timeout(SOON, listener.accept()).await??;
    client.write_all(b"back").await?;
    assert_eq!(receive(&mut server, 4).await?, b"back");
    assert_eq!(proxy.connections(), 2);
    Ok(())
}

#[tokio::test]
async fn reset_does_not_wait_for_a_side_that_stopped_reading() -> io::Result<()> {
    let (proxy, mut client, mut server) = connected().await?;
    let flood = vec![0; 64 * 1024 * 1024];
    assert!(timeout(WHILE, client.write_all(&flood)).await.is_err(), "nobody reads, so the buffers fill");
    proxy.set_both(Fault::Reset);
    let mut sink = Vec::new();
    let error = timeout(SOON, server.read_to_end(&mut sink)).await?.expect_err("the connection is reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    Ok(())
}
