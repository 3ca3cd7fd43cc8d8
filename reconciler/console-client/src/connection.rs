//! A connection to a host's server of consoles and uploads: one request with a ticket, then plain bytes in both directions.

use std::{sync::Arc, time::Duration};

use berth_api::{console::PROTOCOL, vm::ConsoleAddress};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::pinned;

/// The time for the host to accept the connection, and again for its answer, unless the caller gives it more.
const ANSWER: Duration = Duration::from_secs(15);
/// The seconds without a byte after which the kernel probes whether the other end is there, the seconds between its probes, and the number
/// of those without an answer after which it ends the connection.
const IDLE: u32 = 30;
const PROBE_EVERY: u32 = 10;
const MOST_PROBES: u32 = 3;
/// The maximum length of a host's refusal in bytes.
const MAX_REFUSAL: usize = 4 << 10;

/// An open connection.
pub type Connection = TokioIo<Upgraded>;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host accepts no connection.
    #[error("the host is down, or a firewall is in between: {0}")]
    Down(String),
    /// The host is not the one that the status names, or the connection broke.
    #[error("{0}")]
    Broken(String),
    /// The host refused the request.
    #[error("refused ({code}): {text}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The reason, for people.
        text: String,
    },
}

/// Connects to the server and makes a request for this path with the ticket.
///
/// # Errors
/// No connection, another certificate, or a refusal of the host.
pub async fn connect(server: &ConsoleAddress, path: &str, ticket: &str) -> Result<Connection, ConnectError> {
    connect_within(ANSWER, server, path, ticket).await
}

/// Connects as [`connect`] does, and gives the host so much time to answer the request.
///
/// # Errors
/// Those of [`connect`].
pub async fn connect_within(
    limit: Duration,
    server: &ConsoleAddress,
    path: &str,
    ticket: &str,
) -> Result<Connection, ConnectError> {
    let broken = |step: &str, error: &dyn std::fmt::Display| ConnectError::Broken(format!("{step}: {error}"));
    let late = |step: &str, limit: Duration| {
        ConnectError::Broken(format!("{step} within {} seconds", limit.as_secs()))
    };
    let stream = match timeout(ANSWER, TcpStream::connect(&server.address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(ConnectError::Down(format!("connecting: {error}"))),
        Err(_) => return Err(ConnectError::Down("it does not answer within 15 seconds".to_owned())),
    };
    // Each typed character is a packet.
    stream.set_nodelay(true).map_err(|error| broken("connecting", &error))?;
    notice_silence(&stream).map_err(|error| broken("connecting", &error))?;
    let config = pinned::client_config(&server.certificate_sha256).map_err(|error| broken("TLS", &error))?;
    let name = ServerName::try_from("berth-console").map_err(|error| broken("TLS", &error))?;
    let tls = timeout(ANSWER, TlsConnector::from(Arc::new(config)).connect(name, stream)).await;
    let stream = tls.map_err(|_| late("no TLS", ANSWER))?.map_err(|error| broken("TLS", &error))?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken("sending the request", &error))?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::get(path)
        .header(header::HOST, &server.address)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, PROTOCOL)
        .header(header::AUTHORIZATION, format!("Bearer {ticket}"))
        .body(Empty::<Bytes>::new())
        .map_err(|error| broken("making the request", &error))?;
    let answer = timeout(limit, sender.send_request(request)).await.map_err(|_| late("no answer", limit))?;
    let answer = answer
        .map_err(|error| broken("the host closed the connection: it has too many, or it stops", &error))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = answer.status().as_u16();
        let body = timeout(limit, Limited::new(answer.into_body(), MAX_REFUSAL).collect()).await;
        // The code says enough if the text does not come.
        let text =
            body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        return Err(ConnectError::Refused { code, text: String::from_utf8_lossy(&text).trim().to_owned() });
    }
    let upgraded = hyper::upgrade::on(answer).await;
    Ok(TokioIo::new(upgraded.map_err(|error| broken("taking over the connection", &error))?))
}

/// Has the kernel end a connection whose other end is gone without a word, as that of a host that lost its power: a session that only
/// reads would wait for ever.
fn notice_silence(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &IDLE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_EVERY)?;
    setsockopt(stream, sockopt::TcpKeepCount, &MOST_PROBES)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::pinned::tests::acceptor;

    #[tokio::test]
    async fn a_host_that_is_gone_is_noticed_within_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        notice_silence(&stream).expect("set");
        assert!(getsockopt(&stream, sockopt::KeepAlive).expect("read"));
        let [idle, every] = [
            getsockopt(&stream, sockopt::TcpKeepIdle).expect("read"),
            getsockopt(&stream, sockopt::TcpKeepInterval).expect("read"),
        ];
        let count = getsockopt(&stream, sockopt::TcpKeepCount).expect("read");
        assert_eq!(idle + every * count, 60);
    }

    #[tokio::test]
    async fn a_host_that_never_ends_its_refusal_does_not_keep_the_client() {
        let (acceptor, digits) = acceptor();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            let mut stream = acceptor.accept(stream).await.expect("TLS");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 100\r\n\r\nnot you";
            stream.write_all(refusal).await.expect("sent");
            stream.flush().await.expect("sent");
            std::future::pending::<()>().await;
        });
        let server = ConsoleAddress { address, certificate_sha256: digits };
        let limit = Duration::from_secs(1);
        let refused = timeout(limit * 20, connect_within(limit, &server, "/a", "ticket")).await;
        let refused = refused.expect("it ends");
        assert!(matches!(refused, Err(ConnectError::Refused { code: 403, .. })));
    }
}
