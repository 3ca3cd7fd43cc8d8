//! Connections, from accepted to ready for HTTP/2.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::listen::{Accepted, Listener};

/// The time limit of a client's TLS handshake.
const TLS_HANDSHAKE: Duration = Duration::from_secs(10);
/// The number of concurrent TLS handshakes. Terraform needs one.
const TLS_HANDSHAKES: usize = 16;
/// The delay after an accept error (usually too many open files).
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Accepts connections until `shutdown`; a connection that fails the TLS handshake never reaches a service.
pub(super) fn connections(
    listener: Listener,
    acceptor: Option<TlsAcceptor>,
    shutdown: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let (ready, connections) = mpsc::channel(TLS_HANDSHAKES);
    tokio::spawn(async move {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = accept(listener, acceptor, ready) => {}
        }
    });
    ReceiverStream::new(connections)
}

async fn accept(
    listener: Listener,
    acceptor: Option<TlsAcceptor>,
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    let slots = Arc::new(Semaphore::new(TLS_HANDSHAKES));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let accepted = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            let _slot = slot;
            match tokio::time::timeout(TLS_HANDSHAKE, Connection::establish(accepted, acceptor)).await {
                // The receiver is gone when the server shuts down.
                Ok(Ok(connection)) => drop(ready.send(Ok(connection)).await),
                Ok(Err(error)) => tracing::warn!(%error, "refused a client"),
                Err(_) => tracing::warn!("refused a client that did not complete the TLS handshake"),
            }
        });
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// A connection of either kind, with or without TLS.
pub(super) struct Connection(Box<dyn Socket>);

impl Connection {
    async fn establish(accepted: Accepted, acceptor: Option<TlsAcceptor>) -> io::Result<Self> {
        Ok(Self(match (accepted, acceptor) {
            #[cfg(unix)]
            (Accepted::Unix(stream), Some(acceptor)) => Box::new(acceptor.accept(stream).await?),
            #[cfg(unix)]
            (Accepted::Unix(stream), None) => Box::new(stream),
            (Accepted::Tcp(stream), Some(acceptor)) => Box::new(acceptor.accept(stream).await?),
            (Accepted::Tcp(stream), None) => Box::new(stream),
        }))
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
