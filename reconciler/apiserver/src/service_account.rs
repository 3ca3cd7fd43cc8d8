//! ServiceAccounts as users: tokens (JSON web tokens, ES256) signed with a key of this server.
//!
//! A token is valid until it expires and as long as the account it was issued for exists (compared by uid),
//! and also the Secret it is bound to, if any: deleting the account invalidates all its tokens at once.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_store::{Key, Store, read_or_make_bytes};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::identity::{Holder, Identity, Token, TokenError};
use berth_engine::Clock;

/// The issuer, and the default audience of a token request.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The file of the signing key, in the state directory.
pub(crate) const KEY_FILE: &str = "service-account.key";
/// The number of tokens in the cache of verified signatures.
const REMEMBERED: usize = 4096;
/// The maximum length of a token in bytes.
pub(crate) const MAX_TOKEN: usize = 8 * 1024;

/// The claims of a token, as Kubernetes writes them. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(rename = "aud")]
    pub(crate) audiences: Vec<String>,
    #[serde(rename = "exp")]
    pub(crate) expires: i64,
    #[serde(rename = "iat")]
    pub(crate) issued: i64,
    #[serde(rename = "iss")]
    pub(crate) issuer: String,
    #[serde(rename = "jti")]
    pub(crate) id: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) account: AccountClaims,
    #[serde(rename = "nbf")]
    pub(crate) not_before: i64,
    #[serde(rename = "sub")]
    pub(crate) user: String,
}

/// The account that a token is issued for, and the Secret that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountClaims {
    pub(crate) namespace: String,
    pub(crate) serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Named>,
}

/// An object of the account's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Returns the user name of a ServiceAccount.
pub(crate) fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Returns the groups of every ServiceAccount of a namespace.
pub(crate) fn groups(namespace: &str) -> [String; 2] {
    ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// Returns the namespace and name of the ServiceAccount that a user name stands for.
pub(crate) fn of_user(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

/// The key that signs tokens, and a cache of verified tokens.
pub(crate) struct SigningKey {
    private: EncodingKey,
    public: DecodingKey,
    /// SHA-256 of the public key.
    id: String,
    /// By SHA-256 of the token: each signature is verified once.
    good: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

/// Omits the secret.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Opens the key in the directory, creating it if it is missing.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(KEY_FILE);
        let bytes = read_or_make_bytes(&path, new_key)?;
        Self::of(&bytes).map_err(|error| io::Error::other(format!("reading {KEY_FILE}: {error}")))
    }

    /// Creates a key that exists only in memory.
    pub(crate) fn ephemeral() -> io::Result<Self> {
        Self::of(&new_key()?)
    }

    fn of(pkcs8: &[u8]) -> io::Result<Self> {
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8).map_err(io::Error::other)?;
        let public = pair.public_key().as_ref();
        Ok(Self {
            private: EncodingKey::from_ec_der(pkcs8),
            public: DecodingKey::from_ec_der(public),
            id: URL_SAFE_NO_PAD.encode(Sha256::digest(public)),
            good: Mutex::default(),
        })
    }

    /// Signs the claims as a token.
    pub(crate) fn sign(&self, claims: &Claims) -> io::Result<String> {
        let header = Header { kid: Some(self.id.clone()), typ: None, ..Header::new(Algorithm::ES256) };
        jsonwebtoken::encode(&header, claims, &self.private).map_err(io::Error::other)
    }

    /// Returns the claims of a token signed with this key. Does not check whether the token is still valid.
    fn read(&self, token: &Token) -> Option<Arc<Claims>> {
        if token.as_str().len() > MAX_TOKEN {
            return None;
        }
        if let Some(claims) = self.good().get(token.hash()) {
            return Some(Arc::clone(claims));
        }
        // Not under the lock, for which every request waits: anyone can send tokens that are not valid.
        let claims = Arc::new(self.verify(token.as_str())?);
        let mut good = self.good();
        if good.len() >= REMEMBERED {
            good.clear();
        }
        good.insert(*token.hash(), Arc::clone(&claims));
        Some(claims)
    }

    fn good(&self) -> MutexGuard<'_, HashMap<[u8; 32], Arc<Claims>>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verify(&self, token: &str) -> Option<Claims> {
        // The algorithm is fixed by the server, never chosen by the token. Expiry and audiences are checked at each use.
        let mut rules = Validation::new(Algorithm::ES256);
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.set_issuer(&[ISSUER]);
        jsonwebtoken::decode(token, &self.public, &rules).ok().map(|read| read.claims)
    }
}

fn new_key() -> io::Result<Vec<u8>> {
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
    Ok(made.map_err(|_| io::Error::other("making a signing key"))?.as_ref().to_vec())
}

/// The existing accounts, and the key that signs their tokens.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(crate) signing: SigningKey,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    service_accounts: Arc<str>,
    secrets: Arc<str>,
}

impl Accounts {
    pub(crate) fn new(signing: SigningKey, store: Arc<Store>, clock: Arc<dyn Clock>) -> Self {
        Self {
            signing,
            store,
            clock,
            service_accounts: "/serviceaccounts".into(),
            secrets: "/secrets".into(),
        }
    }

    /// Returns the holder of a valid token for one of these audiences.
    ///
    /// # Errors
    /// The token is not signed by this server, is for other audiences, has expired or was revoked.
    pub(crate) fn authenticate(&self, token: &Token, wanted: &[String]) -> Result<Holder, TokenError> {
        let claims = self.signing.read(token).ok_or(TokenError::Unknown)?;
        let audiences: Vec<String> =
            wanted.iter().filter(|audience| claims.audiences.contains(audience)).cloned().collect();
        if audiences.is_empty() {
            return Err(TokenError::Audience { of: claims.audiences.clone(), wanted: wanted.to_vec() });
        }
        // The time of issue does not matter: only this server signs, so a token from the future only shows
        // that our clock was set back.
        if self.clock.now().as_second() >= claims.expires {
            return Err(TokenError::Expired);
        }
        self.alive(&claims)?;
        let mut identity = Identity::new(claims.user.clone(), groups(&claims.account.namespace));
        identity.uid.clone_from(&claims.account.serviceaccount.uid);
        identity.credential = format!("JTI={}", claims.id);
        Ok(Holder { identity, audiences })
    }

    /// Checks that the same account exists, and the Secret that the token is bound to.
    fn alive(&self, claims: &Claims) -> Result<(), TokenError> {
        let is_same = |storage: &Arc<str>, of: &Named| {
            let found = self.store.get(&Key::new(storage, &claims.account.namespace, &of.name));
            found.is_some_and(|entry| *entry.facts.uid == *of.uid && !entry.facts.deleting)
        };
        let secret = claims.account.secret.as_ref();
        let alive = is_same(&self.service_accounts, &claims.account.serviceaccount)
            && secret.is_none_or(|secret| is_same(&self.secrets, secret));
        if alive { Ok(()) } else { Err(TokenError::Invalidated) }
    }
}

#[cfg(test)]
mod tests;
