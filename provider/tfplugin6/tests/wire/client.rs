//! The client side of the protocol, in place of Terraform.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P521_SHA512};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
};
use tfplugin6::{
    Type, Value,
    proto::tfplugin6::{self as wire, DynamicValue, provider_client::ProviderClient},
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::binary::toy;

pub(crate) const COOKIE: &str = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2";

/// A client certificate with the properties of go-plugin's: P-521, and an authority.
pub(crate) struct ClientIdentity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
    pem: String,
}

impl ClientIdentity {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512).unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), certificate: certificate.der().clone(), key: key.serialize_der() }
    }

    /// The PEM text that is passed to a plugin.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }
}

/// A plugin process after its line on stdout.
pub(crate) struct Plugin {
    child: Child,
    pub(crate) line: String,
}

impl Plugin {
    /// Starts a plugin for a client.
    pub(crate) fn start(client: &ClientIdentity) -> Self {
        Self::start_with(&[("PLUGIN_CLIENT_CERT", client.pem())])
    }

    pub(crate) fn start_with(environment: &[(&str, &str)]) -> Self {
        let mut child = command(environment).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, line: line.trim_end().to_owned() }
    }

    pub(crate) fn part(&self, index: usize) -> &str {
        self.line.split('|').nth(index).unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        PathBuf::from(self.part(3))
    }

    /// Connects over TLS with this identity, or without one.
    pub(crate) async fn connect(
        &self,
        client: Option<&ClientIdentity>,
    ) -> Result<Channel, tonic::transport::Error> {
        let config = Arc::new(tls(self.part(5), client));
        let (network, address) = (self.part(2).to_owned(), self.part(3).to_owned());
        let connector = tower::service_fn(move |_| {
            let (config, network, address) = (Arc::clone(&config), network.clone(), address.clone());
            async move {
                let name = ServerName::try_from("localhost").unwrap();
                let connector = TlsConnector::from(config);
                if network == "unix" {
                    let stream = connector.connect(name, UnixStream::connect(address).await?).await?;
                    Ok::<_, std::io::Error>(TokioIo::new(Box::new(stream) as Box<dyn Io>))
                } else {
                    let stream = connector.connect(name, TcpStream::connect(address).await?).await?;
                    Ok(TokioIo::new(Box::new(stream) as Box<dyn Io>))
                }
            }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await
    }

    /// Connects without TLS.
    pub(crate) async fn connect_plainly(&self) -> Result<Channel, tonic::transport::Error> {
        let path = self.socket();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await
    }

    /// Waits up to `limit` for the process to end.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A killed plugin cannot remove its socket itself.
        let mut parts = self.line.split('|').skip(2);
        if let (Some("unix"), Some(socket)) = (parts.next(), parts.next()) {
            let _ = std::fs::remove_file(socket);
            let _ = std::fs::remove_dir(PathBuf::from(socket).parent().unwrap());
        }
    }
}

fn command(environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(toy());
    for name in ["TF_LOG", "TF_LOG_PROVIDER", "TF_REATTACH_PROVIDERS", "PLUGIN_UNIX_SOCKET_DIR"] {
        command.env_remove(name);
    }
    command.env("TF_PLUGIN_MAGIC_COOKIE", COOKIE).env("PLUGIN_PROTOCOL_VERSIONS", "5,6");
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    command
}

/// Runs a plugin that is expected to end by itself.
pub(crate) fn run_to_end(environment: &[(&str, &str)]) -> Output {
    command(environment).output().unwrap()
}

pub(crate) trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

fn tls(server: &str, client: Option<&ClientIdentity>) -> ClientConfig {
    let crypto = Arc::new(aws_lc_rs::default_provider());
    let server = CertificateDer::from(STANDARD_NO_PAD.decode(server).unwrap());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&crypto))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { server, crypto }));
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(client.key.clone()));
            builder.with_client_auth_cert(vec![client.certificate.clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

#[derive(Debug)]
struct Pinned {
    server: CertificateDer<'static>,
    crypto: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        assert_eq!(*end_entity, self.server, "the certificate is not the one announced");
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.crypto.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.crypto.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

/// A provider client with its plugin process.
pub(crate) struct Session {
    pub(crate) plugin: Plugin,
    pub(crate) channel: Channel,
    pub(crate) provider: ProviderClient<Channel>,
}

impl Session {
    pub(crate) async fn new() -> Self {
        let client = ClientIdentity::new();
        let plugin = Plugin::start(&client);
        let channel = plugin.connect(Some(&client)).await.unwrap();
        let provider = ProviderClient::new(channel.clone())
            .max_decoding_message_size(256 << 20)
            .max_encoding_message_size(256 << 20);
        Self { plugin, channel, provider }
    }
}

/// A value in JSON, the readable one of Terraform's encodings.
pub(crate) fn json(value: serde_json::Value) -> Option<DynamicValue> {
    Some(DynamicValue { json: value.to_string().into(), ..DynamicValue::default() })
}

/// The value of a response.
pub(crate) fn value(sent: Option<DynamicValue>, ty: &Type) -> Value {
    Value::from_msgpack(&sent.expect("a value in the response").msgpack, ty).unwrap()
}

/// The type of a schema from the wire, without nested attributes of nested attributes: enough for `toy_thing`.
pub(crate) fn implied_type(block: &wire::schema::Block) -> Type {
    use wire::schema::object::NestingMode;
    let attribute = |attribute: &wire::schema::Attribute| match &attribute.nested_type {
        None => std::str::from_utf8(&attribute.r#type).unwrap().parse().unwrap(),
        Some(nested) => {
            let flat = |inner: &wire::schema::Attribute| {
                (inner.name.clone(), std::str::from_utf8(&inner.r#type).unwrap().parse().unwrap())
            };
            let element = Type::object(nested.attributes.iter().map(flat));
            match nested.nesting() {
                NestingMode::List => Type::list(element),
                NestingMode::Set => Type::set(element),
                NestingMode::Map => Type::map(element),
                NestingMode::Single | NestingMode::Invalid => element,
            }
        }
    };
    let attributes = block.attributes.iter().map(|it| (it.name.clone(), attribute(it)));
    let blocks =
        block.block_types.iter().map(|it| (it.type_name.clone(), implied_type(it.block.as_ref().unwrap())));
    Type::object(attributes.chain(blocks))
}
