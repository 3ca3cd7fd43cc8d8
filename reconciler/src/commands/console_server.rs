//! The socket and the certificate with which this machine's agent serves consoles.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use anyhow::Context;
use berth_agent::ConsoleServer;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tracing::warn;

use crate::cli::AgentOptions;

use super::addresses;

/// Certificate and key, in the state directory: clients find the certificate's hash in the status of each VM.
const CERTIFICATE: &str = "console.pem";
/// The port unless --console-listen names another.
const PORT: u16 = 7444;

/// Listens for clients of consoles: on --console-listen, else on port 7444 of `address`. `None`: --no-console, or the
/// port is in use, which is no reason to run no VMs.
///
/// *Errors:* --console-listen cannot be used; the certificate cannot be stored.
pub(super) async fn listen(
    options: &AgentOptions,
    state_dir: &Path,
    address: IpAddr,
    control_plane: Option<SocketAddr>,
) -> anyhow::Result<Option<Arc<ConsoleServer>>> {
    if options.no_console {
        return Ok(None);
    }
    let at = options.console_listen.unwrap_or(SocketAddr::new(address, PORT));
    let listener = match TcpListener::bind(at).await {
        Ok(listener) => listener,
        Err(error) if options.console_listen.is_none() => {
            warn!(%at, %error, "no consoles are served: choose another port with --console-listen");
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("listening for consoles on {at} (--console-listen)"));
        }
    };
    let bound = listener.local_addr().context("asking for the address of the consoles")?;
    let (tls, certificate_sha256) = certificate(state_dir)?;
    let ip = if bound.ip().is_unspecified() { reached(options, control_plane)? } else { bound.ip() };
    let address = SocketAddr::new(ip, bound.port());
    let is_for_hosts = !ip.is_loopback();
    let moves_guests = options.experimental_live_migration;
    let server = ConsoleServer { listener, tls, address, is_for_hosts, moves_guests, certificate_sha256 };
    Ok(Some(Arc::new(server)))
}

/// Returns the address at which clients reach this machine.
fn reached(options: &AgentOptions, control_plane: Option<SocketAddr>) -> anyhow::Result<IpAddr> {
    let own = addresses::of_this_machine(options, control_plane)?.map(IpAddr::V4);
    Ok(own.or_else(addresses::outward).unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

/// Reads the certificate, or makes one; returns the TLS configuration and the certificate's SHA-256.
fn certificate(state_dir: &Path) -> anyhow::Result<(Arc<ServerConfig>, String)> {
    let path = state_dir.join(CERTIFICATE);
    let what = || format!("the certificate of the consoles, {}", path.display());
    let parse = |pem: &[u8]| {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        Some((certificate, PrivateKeyDer::from_pem_slice(pem).ok()?))
    };
    let (certificate, key) = match std::fs::read(&path) {
        Ok(pem) => parse(&pem).with_context(|| format!("{} is damaged: remove it for a new one", what()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = rcgen::generate_simple_self_signed(["berth-console".to_owned()]).with_context(what)?;
            let pem = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
            write_private(&path, pem.as_bytes()).with_context(what)?;
            parse(pem.as_bytes()).with_context(what)?
        }
        Err(error) => return Err(error).with_context(what),
    };
    let sha256 = Sha256::digest(&certificate).iter().map(|byte| format!("{byte:02x}")).collect();
    let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .with_context(what)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .with_context(what)?;
    Ok((Arc::new(tls), sha256))
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let staged = path.with_extension("new");
    let mut file =
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&staged, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_machine_keeps_its_certificate() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, first) = certificate(directory.path()).expect("made");
        assert_eq!(first.len(), 64);
        assert_eq!(certificate(directory.path()).expect("read").1, first);
        let path = directory.path().join(CERTIFICATE);
        assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "garbage").expect("written");
        let error = certificate(directory.path()).expect_err("damaged");
        assert!(format!("{error:#}").contains("remove it"), "{error:#}");
    }
}
