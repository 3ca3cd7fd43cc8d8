//! Why a connection to the control plane fails, in words that name the cause and the remedy.
//!
//! Pure. The words never contain a credential, nor any other content of a kubeconfig than the address of its server.

/// The address of the control plane, and where it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `https://host:port`
    pub address: String,
    /// Such as `the kubeconfig /home/me/berth.kubeconfig`.
    pub source: String,
}

/// A failed connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The cause, and the remedy where there is one, without a full stop at the end.
    pub text: String,
    /// Whether the same request fails again for as long as the configuration stays as it is.
    pub is_lasting: bool,
}

/// Explains a failure by the texts of an error and its causes.
#[must_use]
pub fn explain(place: Option<&Place>, error: &str) -> Failure {
    let Some(Place { address, source }) = place else {
        return Failure { text: error.to_owned(), is_lasting: false };
    };
    let lower = error.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let lasting = |text: String| Failure { text, is_lasting: true };
    let passing = |text: String| Failure { text, is_lasting: false };
    if has(&["unknownissuer", "unknown issuer", "selfsigned", "self-signed", "badsignature"]) {
        return lasting(format!(
            "The certificate of {address} is signed by an authority that this provider does not know. Set ca_certificate \
             (BERTH_CA_CERT) to the certificate of the authority, or use a kubeconfig, which has it: a local control plane \
             prints one with \"sudo berth kubeconfig\". The address is from {source}"
        ));
    }
    if has(&["not valid for name", "notvalidforname"]) {
        return lasting(format!(
            "The certificate of {address} is for another name. Use the name or address that the certificate is for. The \
             address is from {source}"
        ));
    }
    if has(&["invalid peer certificate: expired", "certificate expired", "notvalidyet", "not valid yet"]) {
        return lasting(format!(
            "The certificate of {address} has expired or is not valid yet: check the clocks of both machines, then the \
             certificate. The address is from {source}"
        ));
    }
    if has(&["invalidcontenttype", "wrong version number"]) {
        return lasting(format!(
            "{address} speaks no TLS on this port, so https:// does not work there. Use the port that serves https. The \
             address is from {source}"
        ));
    }
    if address.starts_with("http:")
        && has(&["http version", "invalid http", "https server", "message completed"])
    {
        return lasting(format!(
            "{address} does not speak plain HTTP on this port, probably it expects TLS: write https://. The address is from \
             {source}"
        ));
    }
    if has(&["fatal alert", "certificate required"]) {
        return lasting(format!(
            "{address} refuses the TLS connection of this client, probably because its certificate is unknown or expired: get \
             another kubeconfig. The address is from {source}"
        ));
    }
    if has(&["dns error", "failed to lookup", "name or service not known"]) {
        return passing(format!(
            "The name in {address} cannot be resolved: check the name, and the DNS of this machine. The address is from {source}"
        ));
    }
    if has(&["connection refused"]) {
        return passing(format!("Nothing listens at {address}, which is from {source}"));
    }
    if has(&["timed out", "deadline has elapsed", "no response"]) {
        return passing(format!(
            "{address} does not answer in time: check the address, and firewalls in between. The address is from {source}"
        ));
    }
    if has(&["network is unreachable", "no route to host", "host is unreachable"]) {
        return passing(format!("This machine has no route to {address}, which is from {source}"));
    }
    passing(format!("The connection to {address}, which is from {source}, fails: {error}"))
}
