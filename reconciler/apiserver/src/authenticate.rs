//! Authentication of bearer tokens, for requests that carry one and for reviews that ask about one.

use crate::credentials::Credentials;
use crate::identity::{Holder, Identity, TokenError};
use crate::service_account::{Accounts, ISSUER};

/// All accepted tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Tokens issued by the server, if it has a state directory.
    pub(crate) given: Option<Credentials>,
    pub(crate) accounts: Accounts,
}

/// Returns the holder of a valid token for one of these audiences.
pub(crate) fn token(tokens: &Tokens, token: &str, audiences: &[String]) -> Result<Holder, TokenError> {
    match tokens.given.as_ref().and_then(|credentials| credentials.of_token(token)) {
        // An issued token has no audiences: it is for the server itself.
        Some(identity) if audiences.iter().any(|audience| audience == ISSUER) => {
            Ok(Holder { identity, audiences: vec![ISSUER.to_owned()] })
        }
        Some(_) => Err(TokenError::Unknown),
        None => tokens.accounts.authenticate(token, audiences),
    }
}

/// The token a request was authenticated with, among the request's extensions.
#[derive(Clone)]
pub(crate) struct Credential(std::sync::Arc<str>);

/// Omits the secret.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential")
    }
}

impl Credential {
    pub(crate) fn new(token: &str) -> Self {
        Self(token.into())
    }

    /// Returns the user that it identifies now; `None` once it has expired or was revoked.
    pub(crate) fn identity(&self, tokens: &Tokens) -> Option<Identity> {
        bearer(tokens, &self.0)
    }
}

/// Returns the holder of a request's token.
pub(crate) fn bearer(tokens: &Tokens, brought: &str) -> Option<Identity> {
    match token(tokens, brought, &[ISSUER.to_owned()]) {
        Ok(holder) => Some(holder.identity),
        Err(why) => {
            tracing::debug!(error = %why, "a token was not taken");
            None
        }
    }
}
