//! The listener that Terraform connects to: a unix socket, or a port of the loopback interface where unix sockets are
//! unavailable.

use std::{io, ops::RangeInclusive};

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

use super::handshake::Handshake;

/// A bound listener. It removes the socket that it created when it is dropped.
#[derive(Debug)]
pub(super) enum Listener {
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        path: String,
        /// Keeps the directory while the socket is in it; none where Terraform owns the directory.
        _directory: Option<tempfile::TempDir>,
    },
    Tcp {
        listener: TcpListener,
        address: String,
    },
}

/// One accepted connection.
#[derive(Debug)]
pub(super) enum Accepted {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    pub(super) async fn bind(handshake: &Handshake) -> io::Result<Self> {
        #[cfg(unix)]
        match unix(handshake) {
            Ok(listener) => return Ok(listener),
            // The file system has no sockets, or the path is too long for a socket.
            Err(error) => tracing::debug!(%error, "no unix socket, falling back to tcp"),
        }
        tcp(handshake.ports.clone()).await
    }

    pub(super) fn network(&self) -> &'static str {
        match self {
            #[cfg(unix)]
            Self::Unix { .. } => "unix",
            Self::Tcp { .. } => "tcp",
        }
    }

    pub(super) fn address(&self) -> &str {
        match self {
            #[cfg(unix)]
            Self::Unix { path, .. } => path,
            Self::Tcp { address, .. } => address,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            #[cfg(unix)]
            Self::Unix { listener, .. } => Ok(Accepted::Unix(listener.accept().await?.0)),
            Self::Tcp { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                // Requests are small, and the client waits for each: Nagle's algorithm would cost 40 ms now and then.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Self::Unix { path, .. } = self {
            // Terraform removes its directory with everything in it: a missing socket is not an error.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(unix)]
fn unix(handshake: &Handshake) -> io::Result<Listener> {
    let (directory, path) = match &handshake.socket_directory {
        Some(directory) => (None, directory.join(format!("plugin-{}", std::process::id()))),
        None => {
            // Only the owner may enter the directory: without a client certificate to pin, that is the only protection.
            let directory = tempfile::Builder::new().prefix("plugin").tempdir()?;
            let path = directory.path().join("socket");
            (Some(directory), path)
        }
    };
    let path =
        path.into_os_string().into_string().map_err(|_| io::Error::other("a path that is not UTF-8"))?;
    // Terraform splits the line on stdout at these characters.
    if path.contains(['|', '\n']) {
        return Err(io::Error::other("a path with a separator in it"));
    }
    Ok(Listener::Unix { listener: UnixListener::bind(&path)?, path, _directory: directory })
}

async fn tcp(ports: RangeInclusive<u16>) -> io::Result<Listener> {
    let mut last = io::Error::other("no port to try");
    for port in ports {
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => {
                let address = listener.local_addr()?.to_string();
                return Ok(Listener::Tcp { listener, address });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(directory: &std::path::Path) -> Handshake {
        Handshake { socket_directory: Some(directory.to_owned()), ..Handshake::for_debugging(|_| None) }
    }

    #[tokio::test]
    async fn the_socket_is_removed_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&handshake(directory.path())).await.unwrap();
        let path = std::path::PathBuf::from(listener.address());
        assert!(path.exists());
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn where_a_socket_cannot_be_tcp_is_listened_on_without_delay() {
        let nowhere = std::path::Path::new("/nonexistent/directory");
        let listener = Listener::bind(&handshake(nowhere)).await.unwrap();
        assert_eq!(listener.network(), "tcp");
        let client = TcpStream::connect(listener.address()).await.unwrap();
        let Accepted::Tcp(accepted) = listener.accept().await.unwrap() else { panic!("not tcp") };
        assert!(accepted.nodelay().unwrap());
        drop(client);
    }
}
