//! TLS to a server of consoles and uploads: its certificate is the one that the object's status names, and no other.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// Accepts the certificate with this SHA-256.
#[derive(Debug)]
struct Pinned {
    sha256: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found: String = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect();
        if found == self.sha256 {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General(format!(
            "its certificate is {found}, and the object's status names {}",
            self.sha256
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the TLS configuration for the server with this certificate.
pub(crate) fn client_config(sha256: &str) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Pinned { sha256: sha256.to_owned(), provider: provider.clone() };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
    };

    use super::*;

    /// Returns a server's side of TLS with a certificate of its own, and the SHA-256 of that.
    pub(crate) fn acceptor() -> (TlsAcceptor, String) {
        let made = rcgen::generate_simple_self_signed(["berth-console".to_owned()]).expect("a certificate");
        let certificate = made.cert.der().clone();
        let digits = Sha256::digest(&certificate).iter().map(|byte| format!("{byte:02x}")).collect();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .expect("a configuration");
        (TlsAcceptor::from(Arc::new(config)), digits)
    }

    #[test]
    fn another_certificate_is_refused() {
        let made = rcgen::generate_simple_self_signed(["berth-console".to_owned()]).expect("a certificate");
        let sha256: String =
            Sha256::digest(made.cert.der()).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = ServerName::try_from("berth-console").expect("a name");
        let verify = |sha256: String| {
            let pinned = Pinned { sha256, provider: Arc::new(aws_lc_rs::default_provider()) };
            pinned.verify_server_cert(made.cert.der(), &[], &name, &[], UnixTime::now())
        };
        assert!(verify(sha256.clone()).is_ok());
        let error = verify(sha256.replace(['0', '1', '2', '3'], "4")).expect_err("another");
        assert!(error.to_string().contains(&sha256), "{error}");
    }
}
