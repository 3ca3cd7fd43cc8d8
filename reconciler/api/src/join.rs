//! The line with which a host joins: the control plane's address, its CA, the host's name and its first token. Pure.

use base64::{Engine, engine::general_purpose};
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
    fn the_secret_is_in_no_debug_output() {
        let secret = Join { token: "top.secret.token".into(), ..join() };
        assert!(!format!("{secret:?}").contains("secret"));
    }
}
