//! Authentication of bearer tokens, for requests that carry one and for reviews that ask about one.

use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;

use crate::credentials::Credentials;
use crate::identity::{Holder, Identity, Token, TokenError};
use crate::service_account::{Accounts, ISSUER};

/// All accepted tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Tokens issued by the server, if it has a state directory.
    pub(crate) given: Option<Credentials>,
    pub(crate) accounts: Accounts,
}

/// Returns the holder of a valid token for one of these audiences.
pub(crate) fn token(tokens: &Tokens, token: &Token, audiences: &[String]) -> Result<Holder, TokenError> {
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
pub(crate) struct Credential(Arc<Token>);

/// Omits the secret.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential")
    }
}

impl Credential {
    pub(crate) fn new(token: &str) -> Self {
        Self(Arc::new(Token::new(token)))
    }

    /// Returns the user that it identifies now; `None` once it has expired or was revoked.
    pub(crate) fn identity(&self, tokens: &Tokens) -> Option<Identity> {
        bearer(tokens, &self.0)
    }
}

/// The credential of the last request of a connection. A client sends the same token with each request, and each of its open watches
/// keeps a credential: a host has sixteen watches, and its token is about 1 KB.
#[derive(Debug, Default)]
pub(crate) struct LastCredential(Mutex<Option<Credential>>);

impl LastCredential {
    /// Returns the credential with this token.
    pub(crate) fn with(&self, token: &str) -> Credential {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A proxy may send requests of several users over one connection.
        let is_known = |known: &&Credential| {
            verify_slices_are_equal(known.0.as_str().as_bytes(), token.as_bytes()).is_ok()
        };
        if let Some(known) = last.as_ref().filter(is_known) {
            return known.clone();
        }
        last.insert(Credential::new(token)).clone()
    }
}

/// Returns the holder of a request's token.
pub(crate) fn bearer(tokens: &Tokens, brought: &Token) -> Option<Identity> {
    match token(tokens, brought, &[ISSUER.to_owned()]) {
        Ok(holder) => Some(holder.identity),
        Err(why) => {
            tracing::debug!(error = %why, "a token was not taken");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_a_connection_with_the_same_token_share_it() {
        let last = LastCredential::default();
        let first = last.with("a.b.c");
        assert!(Arc::ptr_eq(&first.0, &last.with("a.b.c").0));
        let other = last.with("a.b.d");
        assert_eq!((first.0.as_str(), other.0.as_str()), ("a.b.c", "a.b.d"));
        assert!(Arc::ptr_eq(&other.0, &last.with("a.b.d").0));
    }
}
