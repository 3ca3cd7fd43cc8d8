//! The address and the credentials of an API server, from a kubeconfig.
//!
//! Sockets are created inside a namespace and used from any thread.

use std::io::BufReader;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::namespace::Namespace;

/// A TLS connection.
pub(crate) type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// An API server, and the credentials of one of its users.
#[derive(Debug, Clone)]
pub struct Access {
    pub(crate) address: String,
    token: String,
    tls: Arc<ClientConfig>,
    namespace: Arc<Namespace>,
}

impl Access {
    /// Reads a kubeconfig in YAML or JSON: of `berth up`, of a joined host, of a Kubernetes control plane.
    pub fn read(kubeconfig: &Path, namespace: &Arc<Namespace>) -> Result<Self> {
        let text = std::fs::read_to_string(kubeconfig)
            .with_context(|| format!("reading {}", kubeconfig.display()))?;
        let login = Login::of(&text)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&login.authority)?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let token = match login.token {
            Token::Said(token) => token,
            Token::InFile(file) => {
                std::fs::read_to_string(kubeconfig.with_file_name(file))?.trim().to_owned()
            }
        };
        Ok(Self { address: login.address, token, tls: Arc::new(tls), namespace: Arc::clone(namespace) })
    }

    /// The same API with another user's token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// The bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The port of the server.
    pub fn port(&self) -> Result<u16> {
        let (_, port) = self.address.rsplit_once(':').context("the server has no port")?;
        Ok(port.parse()?)
    }

    /// A new connection with a read timeout of `patience`.
    pub(crate) fn stream(&self, patience: Duration) -> Result<Stream> {
        let address = self.address.clone();
        let socket = self.namespace.inside(move || Ok(TcpStream::connect(&address)?))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned())?;
        let tls = ClientConnection::new(Arc::clone(&self.tls), name)?;
        Ok(BufReader::new(StreamOwned::new(tls, socket)))
    }
}

/// The credentials read from a kubeconfig.
#[derive(Debug, PartialEq, Eq)]
struct Login {
    address: String,
    authority: Vec<u8>,
    token: Token,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Said(String),
    /// In a file beside the kubeconfig.
    InFile(String),
}

impl Login {
    fn of(kubeconfig: &str) -> Result<Self> {
        let config: Value = serde_saphyr::from_str(kubeconfig).context("the kubeconfig is no YAML")?;
        let field = |pointer: &str| {
            let found = config.pointer(pointer).and_then(Value::as_str);
            found.map(str::to_owned).with_context(|| format!("no {pointer} in the kubeconfig"))
        };
        let server = field("/clusters/0/cluster/server")?;
        let token = match field("/users/0/user/tokenFile") {
            Ok(file) => Token::InFile(file),
            Err(_) => Token::Said(field("/users/0/user/token")?),
        };
        Ok(Self {
            address: server.strip_prefix("https://").context("the server has no TLS")?.to_owned(),
            authority: STANDARD.decode(field("/clusters/0/cluster/certificate-authority-data")?.trim())?,
            token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_read_as_yaml_and_as_json() {
        let yaml = "clusters:\n- cluster:\n    server: https://a:1\n    certificate-authority-data: >-\n      QUJD\n\
                    users:\n- user:\n    token: \"t\"\n";
        let json = r#"{"clusters":[{"cluster":{"server":"https://a:1","certificate-authority-data":"QUJD"}}],
            "users":[{"user":{"tokenFile":"host.token"}}]}"#;
        let login = |token| Login { address: "a:1".into(), authority: b"ABC".to_vec(), token };
        assert_eq!(Login::of(yaml).expect("it is one"), login(Token::Said("t".into())));
        assert_eq!(Login::of(json).expect("it is one"), login(Token::InFile("host.token".into())));
        assert!(Login::of(&yaml.replace("https:", "http:")).is_err());
    }
}
