//! Mutual TLS without an authority: each side pins the single certificate of the other.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error as TlsError, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime, pem::PemObject},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use tokio_rustls::TlsAcceptor;

/// The host name that Terraform expects in a plugin's certificate.
const HOST: &str = "localhost";

/// The reason there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("PLUGIN_CLIENT_CERT is not a certificate")]
    Client(#[source] rustls::pki_types::pem::Error),
    #[error("cannot make a key or sign a certificate")]
    Own(#[from] rcgen::Error),
    #[error("cannot use the certificate")]
    Config(#[from] TlsError),
}

/// This process's certificate, for one client.
#[derive(Debug)]
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    config: Arc<ServerConfig>,
}

impl Identity {
    /// Creates a certificate to serve exactly the client with `client_pem`.
    pub(super) fn for_client(client_pem: &str) -> Result<Self, CertificateError> {
        let client =
            CertificateDer::from_pem_slice(client_pem.as_bytes()).map_err(CertificateError::Client)?;
        // P-256: generated in microseconds, where P-521 or RSA would take most of the start-up time.
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = parameters()?.self_signed(&key)?.der().clone();
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let crypto = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&crypto))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(Pinned { client, crypto }))
            .with_single_cert(vec![certificate.clone()], private)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { certificate, config: Arc::new(config) })
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn into_acceptor(self) -> TlsAcceptor {
        TlsAcceptor::from(self.config)
    }
}

/// The same parameters as go-plugin's certificate: Go accepts a pinned certificate only if it could have signed itself.
fn parameters() -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(vec![HOST.to_owned()])?;
    parameters.distinguished_name.push(DnType::CommonName, HOST);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyAgreement,
        KeyUsagePurpose::KeyCertSign,
    ];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    Ok(parameters)
}

/// Accepts one certificate, byte for byte. Its other fields (it claims to be an authority) do not matter: it came through the
/// environment of this process, and the handshake proves that the peer holds its key.
#[derive(Debug)]
struct Pinned {
    client: CertificateDer<'static>,
    crypto: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        if *end_entity == self.client {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(TlsError::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
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
