//! Connections to ports of guests.

use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};

use super::Result;
use crate::SystemError;

/// Connects to a port of a guest, bound to the bridge: whatever routes the host has, no other machine gets the connection.
pub(in crate::linux) async fn connect_to_guest(bridge: &str, guest: SocketAddr) -> Result<TcpStream> {
    let failed = |error: std::io::Error| SystemError::Network {
        attempt: "connect to",
        name: guest.to_string(),
        detail: error.to_string(),
    };
    let socket = if guest.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
    let socket = socket.map_err(failed)?;
    socket.bind_device(Some(bridge.as_bytes())).map_err(failed)?;
    let stream = socket.connect(guest).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}
