//! How a host joins: one line that contains the control plane's address, its CA and the host's name.
//!
//! ```text
//! admin:  berth token create h2 ──▶ berth1.eyJ…            (server, CA, token of ServiceAccount host-h2)
//! host:   berth host --join … ──▶ its own token ──▶ <state-dir>/host.kubeconfig + host.token, renewed from then on
//! ```
//!
//! Pure: files and requests are in [`credential`](crate::credential) and in the commands.

use base64::{Engine, engine::general_purpose};
pub use berth_api::join::{Join, JoinError};
use k8s_openapi::jiff::Timestamp;

/// The times in a token's claims. Unverified: only the control plane can verify the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTimes {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

impl TokenTimes {
    /// Reads the times from a JSON web token; `None` if it is not one or lacks them.
    pub fn of(token: &str) -> Option<Self> {
        let body = token.trim().split('.').nth(1)?;
        let json = general_purpose::URL_SAFE_NO_PAD.decode(body).ok()?;
        let claims: serde_json::Value = serde_json::from_slice(&json).ok()?;
        let time = |name: &str| Timestamp::from_second(claims[name].as_i64()?).ok();
        Some(Self { issued: time("iat")?, expires: time("exp")? })
    }

    /// When it should be replaced: at half its lifetime, so that a control plane may be unreachable for the other
    /// half.
    pub fn renew_at(&self) -> Timestamp {
        let half = (self.expires.as_second() - self.issued.as_second()).max(0) / 2;
        Timestamp::from_second(self.issued.as_second() + half).unwrap_or(self.expires)
    }
}

/// A kubeconfig that reads its token from a file beside it, so that a renewal writes only that file.
pub fn kubeconfig(join: &Join, token_file: &str) -> String {
    let mut cluster = serde_json::json!({"server": join.server});
    if let Some(ca) = &join.ca {
        cluster["certificate-authority-data"] = general_purpose::STANDARD.encode(ca).into();
    }
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "berth", "cluster": cluster}],
        "users": [{"name": join.host, "user": {"tokenFile": token_file}}],
        "contexts": [{"name": "berth", "context": {"cluster": "berth", "user": join.host}}],
        "current-context": "berth",
    });
    serde_saphyr::to_string(&config).expect("texts always serialize")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join() -> Join {
        Join {
            server: "https://10.0.0.1:7443".into(),
            ca: Some("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n".into()),
            token: "a.b.c".into(),
            host: "h2".into(),
        }
    }

    #[test]
    fn a_token_is_renewed_at_half_its_life() {
        let body = general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iat":1000,"exp":3000}"#);
        let times = TokenTimes::of(&format!("h.{body}.s")).expect("it says");
        assert_eq!(times.renew_at().as_second(), 2000);
        assert_eq!(TokenTimes::of("opaque"), None);
    }

    #[test]
    fn the_secret_is_not_in_the_kubeconfig() {
        let secret = Join { token: "top.secret.token".into(), ..join() };
        let config = kubeconfig(&secret, "host.token");
        assert!(!config.contains("secret") && config.contains("host.token"), "{config}");
    }
}
