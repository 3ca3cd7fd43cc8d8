//! The handshake: the environment that Terraform sets, and the one line of the response.

use std::{ops::RangeInclusive, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use rustls::pki_types::CertificateDer;

/// The only protocol version served.
pub(super) const PROTOCOL: u32 = 6;
/// The version of go-plugin's own protocol.
const CORE_PROTOCOL: u32 = 1;

const COOKIE_NAME: &str = "TF_PLUGIN_MAGIC_COOKIE";
/// Not a secret: it shows a plugin that it was not started by hand.
const COOKIE_VALUE: &str = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2";

/// The parameters from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handshake {
    /// PEM. If present, only the holder of its key is served.
    pub(super) client_certificate: Option<String>,
    /// The directory for the socket.
    pub(super) socket_directory: Option<PathBuf>,
    /// The ports for systems without unix sockets.
    pub(super) ports: RangeInclusive<u16>,
}

/// The reason a process was not started as a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(
        "This is a Terraform provider: a plugin that Terraform and OpenTofu start, not a program to run by hand.\n\
         Name it in the required_providers of a configuration and run `terraform init` there."
    )]
    NotAPlugin,
    #[error(
        "this provider speaks plugin protocol {PROTOCOL}, but Terraform offers only {0:?}: \
         use Terraform 1.0 or later, or OpenTofu"
    )]
    NoCommonVersion(String),
}

impl Handshake {
    /// Reads the environment of a plugin.
    pub(super) fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self, HandshakeError> {
        if get(COOKIE_NAME).as_deref() != Some(COOKIE_VALUE) {
            return Err(HandshakeError::NotAPlugin);
        }
        // A host that sends no versions cannot choose one.
        if let Some(offered) = get("PLUGIN_PROTOCOL_VERSIONS").filter(|offered| !offered.is_empty())
            && !offered.split(',').any(|version| version.trim().parse() == Ok(PROTOCOL))
        {
            return Err(HandshakeError::NoCommonVersion(offered));
        }
        let client_certificate = get("PLUGIN_CLIENT_CERT").filter(|pem| !pem.is_empty());
        Ok(Self { client_certificate, ..Self::for_debugging(get) })
    }

    /// For a process that Terraform did not start: there is no certificate to pin.
    pub(super) fn for_debugging(get: impl Fn(&str) -> Option<String>) -> Self {
        let port = |name| get(name).and_then(|port| port.parse::<u16>().ok());
        let directory = get("PLUGIN_UNIX_SOCKET_DIR").filter(|directory| !directory.is_empty());
        Self {
            client_certificate: None,
            socket_directory: directory.map(PathBuf::from),
            ports: match (port("PLUGIN_MIN_PORT"), port("PLUGIN_MAX_PORT")) {
                (Some(min), Some(max)) if min <= max => min..=max,
                // Any free port.
                _ => 0..=0,
            },
        }
    }
}

/// `1|6|unix|PATH|grpc|CERTIFICATE`
pub(super) fn line(network: &str, address: &str, certificate: Option<&CertificateDer<'_>>) -> String {
    let certificate = certificate.map(|der| STANDARD_NO_PAD.encode(der)).unwrap_or_default();
    format!("{CORE_PROTOCOL}|{PROTOCOL}|{network}|{address}|grpc|{certificate}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn without_the_cookie_the_error_explains_the_program() {
        let refusal = Handshake::from_environment(environment(&[])).unwrap_err();
        assert!(refusal.to_string().contains("not a program to run by hand"));
        assert_eq!(
            Handshake::from_environment(environment(&[(COOKIE_NAME, "guess")])),
            Err(HandshakeError::NotAPlugin)
        );
    }

    #[test]
    fn a_terraform_that_only_speaks_5_is_refused() {
        let offered = |versions| {
            Handshake::from_environment(environment(&[
                (COOKIE_NAME, COOKIE_VALUE),
                ("PLUGIN_PROTOCOL_VERSIONS", versions),
            ]))
        };
        assert_eq!(offered("5"), Err(HandshakeError::NoCommonVersion("5".to_owned())));
        assert!(offered("5,6").is_ok());
        assert!(offered("").is_ok());
    }

    #[test]
    fn the_environment_sets_the_socket_and_the_client() {
        let handshake = Handshake::from_environment(environment(&[
            (COOKIE_NAME, COOKIE_VALUE),
            ("PLUGIN_CLIENT_CERT", "PEM"),
            ("PLUGIN_UNIX_SOCKET_DIR", "/run/x"),
            ("PLUGIN_MIN_PORT", "10000"),
            ("PLUGIN_MAX_PORT", "25000"),
        ]))
        .unwrap();
        assert_eq!(handshake.client_certificate.as_deref(), Some("PEM"));
        assert_eq!(handshake.socket_directory, Some(PathBuf::from("/run/x")));
        assert_eq!(handshake.ports, 10_000..=25_000);
    }
}
