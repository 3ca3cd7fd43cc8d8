//! Clients with various behaviours, in memory and with time that jumps.

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::Response;
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::{Identity, Server, ServerConfig};

const MAPS: &str = "https://berth/api/v1/namespaces/default/configmaps";
/// By then every connection that the server closes is closed.
const LONG: Duration = Duration::from_secs(600);

fn serve(server: &Server) -> (DuplexStream, JoinHandle<()>) {
    serve_until(server, i64::MAX)
}

/// Serves the administrator with a certificate that is valid until this time.
fn serve_until(server: &Server, until: i64) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = duplex(1 << 20);
    (far, tokio::spawn(talk_until(server.front(), near, until)))
}

async fn talk_until(front: Arc<Front>, near: DuplexStream, until: i64) {
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let certified = Certified { identity: Identity::admin(), until };
    talk(front, near, peer, Some(certified), CancellationToken::new()).await;
}

/// A client that follows the protocol, with a window of `window` bytes for each stream.
async fn connect(server: &Server, window: u32) -> (SendRequest<Bytes>, JoinHandle<()>) {
    speak(serve(server), window).await
}

async fn speak(
    (far, talking): (DuplexStream, JoinHandle<()>),
    window: u32,
) -> (SendRequest<Bytes>, JoinHandle<()>) {
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(window).handshake(far).await;
    let (client, connection) = handshake.expect("it is HTTP/2");
    tokio::spawn(async move { drop(connection.await) });
    (client, talking)
}

async fn ask(client: &mut SendRequest<Bytes>, method: &str, url: &str, body: String) -> Response<RecvStream> {
    let request = Request::builder().method(method).uri(url).body(()).expect("a request");
    let mut ready = client.clone().ready().await.expect("another may be asked");
    let (answer, mut sends) = ready.send_request(request, false).expect("it is sent");
    sends.send_data(body.into(), true).expect("it is sent");
    answer.await.expect("it is answered")
}

/// A server with objects that make a list of some hundred kilobytes.
async fn server() -> Server {
    let server = Server::open(ServerConfig::in_memory()).await.expect("it opens");
    let (mut client, _) = connect(&server, 1 << 20).await;
    for number in 0..50 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"x": "x".repeat(4096)}});
        assert_eq!(ask(&mut client, "POST", MAPS, map.to_string()).await.status(), 201);
    }
    server
}

#[tokio::test(start_paused = true)]
async fn answers_that_a_client_gives_no_window_for_are_not_kept_for_it() {
    let server = server().await;
    let watch = format!("{MAPS}?watch=true&timeoutSeconds=3600");
    // A client that receives many small pieces gives up by itself.
    for (window, count, url) in [
        (0, MAX_STREAMS, MAPS),
        (1, 10, MAPS),
        (20_000, MAX_STREAMS, MAPS),
        (0, MAX_STREAMS, &watch),
        (1, 10, &watch),
    ] {
        let (mut client, talking) = connect(&server, window).await;
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(ask(&mut client, "GET", url, String::new()).await);
        }
        assert!(answers.iter().all(|answer| answer.status() == 200));
        let (mut other, _) = connect(&server, 1 << 20).await;
        assert_eq!(ask(&mut other, "GET", MAPS, String::new()).await.status(), 200, "others are answered");
        assert!(timeout(LONG, talking).await.is_ok(), "with a window of {window} for {url}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.front().core.store.state().watcher_count(), 0, "nothing is told any more");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_on_which_nothing_is_asked_are_closed() {
    let server = server().await;
    for said in ["", "GET /heal", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (mut far, talking) = serve(&server);
        far.write_all(said.as_bytes()).await.expect("it is taken");
        assert!(timeout(LONG, talking).await.is_ok(), "{said:?}");
    }
    // The same for clients that answer keep-alive pings.
    let (_client, talking) = connect(&server, 1 << 20).await;
    assert!(timeout(LONG, talking).await.is_ok());
    let (mut client, talking) = connect(&server, 1 << 20).await;
    assert_eq!(ask(&mut client, "GET", MAPS, String::new()).await.status(), 200);
    assert!(timeout(LONG, talking).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_http_1_connection_on_which_an_answer_is_not_read_is_closed() {
    let server = server().await;
    let (near, mut far) = duplex(1024);
    let talking = tokio::spawn(talk_until(server.front(), near, i64::MAX));
    let list = "GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: berth\r\n\r\n";
    far.write_all(list.as_bytes()).await.expect("it is taken");
    assert!(timeout(LONG, talking).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_told_nothing_for_long_stays_and_is_told_then() {
    let server = server().await;
    let (mut client, talking) = connect(&server, 1 << 20).await;
    let revision = server.front().core.store.state().revision;
    let url = format!("{MAPS}?watch=true&timeoutSeconds=3600&resourceVersion={revision}");
    let mut events = ask(&mut client, "GET", &url, String::new()).await.into_body();
    sleep(2 * LONG).await;
    let (mut other, _) = connect(&server, 1 << 20).await;
    let map = json!({"metadata": {"name": "late"}}).to_string();
    assert_eq!(ask(&mut other, "POST", MAPS, map).await.status(), 201);
    let reported = events.data().await.expect("it goes on").expect("data");
    assert!(reported.starts_with(b"{\"type\":\"ADDED\"") && !talking.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_taken_slowly_comes_whole() {
    let server = server().await;
    let (mut client, _talking) = connect(&server, 20_000).await;
    let mut list = ask(&mut client, "GET", MAPS, String::new()).await.into_body();
    let mut text = Vec::new();
    while let Some(piece) = list.data().await {
        let piece = piece.expect("data");
        sleep(Duration::from_secs(2)).await;
        list.flow_control().release_capacity(piece.len()).expect("it was held");
        text.extend_from_slice(&piece);
    }
    let list: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(50));
}

#[tokio::test(start_paused = true)]
async fn head_over_http_2_is_answered_without_a_body() {
    let server = server().await;
    let (mut client, _talking) = connect(&server, 1 << 20).await;
    for url in [MAPS, "https://berth/readyz", "https://berth/version", "https://berth/none"] {
        let expected = ask(&mut client, "GET", url, String::new()).await;
        let mut answer = ask(&mut client, "HEAD", url, String::new()).await;
        assert_eq!(answer.status(), expected.status(), "{url}");
        assert_eq!(answer.headers().get("content-type"), expected.headers().get("content-type"));
        assert_eq!(answer.headers()["content-length"], expected.headers()["content-length"], "{url}");
        while let Some(piece) = answer.body_mut().data().await {
            assert_eq!(piece.expect("data").len(), 0, "{url}");
        }
    }
}

#[tokio::test]
async fn a_client_certificate_counts_until_it_expires_however_long_its_connection_is_open() {
    let server = Server::open(ServerConfig::in_memory()).await.expect("it opens");
    for (until, expected) in [(i64::MAX, 200), (0, 401)] {
        let (mut client, _) = speak(serve_until(&server, until), 1 << 20).await;
        let answered = ask(&mut client, "GET", MAPS, String::new()).await;
        assert_eq!(answered.status(), expected, "{until}");
    }
}
