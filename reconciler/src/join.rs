//! How a host joins: one line that contains the control plane's address, its CA and the host's name.
//!
//! ```text
//! admin:  berth token create h2 ──▶ berth1.eyJ…            (server, CA, token of ServiceAccount host-h2)
//! host:   berth host --join … ──▶ its own token ──▶ <state-dir>/host.kubeconfig + host.token, renewed from then on
//! ```
//!
//! Pure: files and requests are in [`credential`](crate::credential) and in the commands.

use base64::{Engine, engine::general_purpose};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The prefix of every join string; another format would have another prefix.
const MARK: &str = "berth1.";
/// Bytes; far more than a join string has.
const MAX_LENGTH: usize = 256 * 1024;

/// The contents of a join string.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The control plane: `https://host:port`.
    pub server: String,
    /// The CA certificates, in PEM; none if the public ones suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The host's first bearer token.
    pub token: String,
    /// The one name the host may join under.
    pub host: String,
}

/// Without the secret.
impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join").field("server", &self.server).field("host", &self.host).finish_non_exhaustive()
    }
}

/// The reason why a text is not a join string.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JoinError {
    /// It lacks the prefix.
    #[error("this is not a join string: `berth token create HOST` prints one, which begins with {MARK:?}")]
    NotOne,
    /// It has the prefix, and the rest is malformed.
    #[error("the join string is damaged (was all of it copied?): {0}")]
    Damaged(String),
}

impl Join {
    /// Encodes the join string.
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("texts always serialize");
        format!("{MARK}{}", general_purpose::URL_SAFE_NO_PAD.encode(json))
    }

    /// Decodes a join string.
    ///
    /// *Errors:* see [`JoinError`].
    pub fn decode(text: &str) -> Result<Self, JoinError> {
        let body = text.trim().strip_prefix(MARK).ok_or(JoinError::NotOne)?;
        if body.len() > MAX_LENGTH {
            return Err(JoinError::Damaged("it is too long".into()));
        }
        let damaged = |error: &dyn std::fmt::Display| JoinError::Damaged(error.to_string());
        let json = general_purpose::URL_SAFE_NO_PAD.decode(body).map_err(|e| damaged(&e))?;
        let join: Self = serde_json::from_slice(&json).map_err(|e| damaged(&e))?;
        if !join.server.starts_with("https://") {
            return Err(JoinError::Damaged("its server is not https".into()));
        }
        Ok(join)
    }
}

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
    fn a_join_string_is_one_line_and_says_again_what_it_was_made_from() {
        let text = join().encode();
        assert!(!text.contains(char::is_whitespace), "{text}");
        assert_eq!(Join::decode(&format!("  {text}\n")), Ok(join()));
    }

    #[test]
    fn what_is_no_join_string_is_told_from_one_that_was_cut() {
        assert_eq!(Join::decode("hello"), Err(JoinError::NotOne));
        let text = join().encode();
        for damaged in [&text[..text.len() / 2], "berth1.", "berth1.e30", "berth1.!"] {
            assert!(matches!(Join::decode(damaged), Err(JoinError::Damaged(_))), "{damaged}");
        }
        let plain = Join { server: "http://x".into(), ..join() }.encode();
        assert!(matches!(Join::decode(&plain), Err(JoinError::Damaged(_))));
    }

    #[test]
    fn a_token_is_renewed_at_half_its_life() {
        let body = general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iat":1000,"exp":3000}"#);
        let times = TokenTimes::of(&format!("h.{body}.s")).expect("it says");
        assert_eq!(times.renew_at().as_second(), 2000);
        assert_eq!(TokenTimes::of("opaque"), None);
    }

    #[test]
    fn the_secret_is_in_no_debug_output_and_not_in_the_kubeconfig() {
        let secret = Join { token: "top.secret.token".into(), ..join() };
        assert!(!format!("{secret:?}").contains("secret"));
        let config = kubeconfig(&secret, "host.token");
        assert!(!config.contains("secret") && config.contains("host.token"), "{config}");
    }
}
