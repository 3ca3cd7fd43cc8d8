//! Who holds a bearer token: one answer for requests that bring it and for reviews that ask about it.

use crate::core::Core;
use crate::identity::Identity;
use crate::service_account::{self, ISSUER};

/// Somebody known by a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) identity: Identity,
    /// Of the audiences that were asked for, those the token is for: one at least.
    pub(crate) audiences: Vec<String>,
}

/// Why a token is not taken, as kube-apiserver words it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("invalid bearer token")]
    Unknown,
    #[error("token audiences {} is invalid for the target audiences {}", quoted(.of), quoted(.wanted))]
    Audience { of: Vec<String>, wanted: Vec<String> },
    #[error("service account token has expired")]
    Expired,
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    #[error("service account UID ({there}) does not match claim ({claimed})")]
    OtherAccount { there: String, claimed: String },
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error("secret UID ({there}) does not match service account secret ref claim ({claimed})")]
    OtherSecret { there: String, claimed: String },
}

/// As Go shows a list of texts.
fn quoted(list: &[String]) -> String {
    let texts: Vec<String> = list.iter().map(|text| crate::schema::quote(text)).collect();
    format!("[{}]", texts.join(" "))
}

/// Who holds this token now, for one of these audiences.
pub(crate) fn token(core: &Core, token: &str, audiences: &[String]) -> Result<Holder, Refused> {
    match core.credentials.as_ref().and_then(|credentials| credentials.of_token(token)) {
        // A token the server was given names no audiences: it is for the server itself.
        Some(identity) if audiences.iter().any(|audience| audience == ISSUER) => {
            Ok(Holder { identity, audiences: vec![ISSUER.to_owned()] })
        }
        Some(_) => Err(Refused::Unknown),
        None => service_account::authenticate(core, token, audiences),
    }
}

/// Who holds the token a request brings.
pub(crate) fn bearer(core: &Core, brought: &str) -> Option<Identity> {
    match token(core, brought, &[ISSUER.to_owned()]) {
        Ok(holder) => Some(holder.identity),
        Err(why) => {
            tracing::debug!(error = %why, "a token was not taken");
            None
        }
    }
}
