//! The socket and the certificate with which an agent serves consoles.

use std::net::SocketAddr;
use std::sync::Arc;

use berth_api::vm::ConsoleAddress;
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;

/// Where and with which certificate an agent serves consoles.
#[derive(Debug)]
pub struct ConsoleServer {
    /// Accepts the connections.
    pub listener: TcpListener,
    /// The TLS configuration, with the certificate.
    pub tls: Arc<ServerConfig>,
    /// The address that clients reach.
    pub address: SocketAddr,
    /// Whether other hosts reach that address too, so that they can copy images from this one.
    pub is_for_hosts: bool,
    /// Whether running guests move to and from this host.
    pub moves_guests: bool,
    /// SHA-256 of the certificate (DER), in hexadecimal digits.
    pub certificate_sha256: String,
}

impl ConsoleServer {
    /// Returns the address for the statuses of VMs and images.
    pub(crate) fn published(&self) -> ConsoleAddress {
        ConsoleAddress {
            address: self.address.to_string(),
            certificate_sha256: self.certificate_sha256.clone(),
        }
    }
}
