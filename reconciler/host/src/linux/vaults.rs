//! A client for the transit engine of Vault and of OpenBao, which has the same API.
//!
//! ```text
//!  a token, or AppRole ──login──▶ a token, in memory until 2/3 of its lease
//!  POST v1/MOUNT/encrypt/KEY, v1/MOUNT/decrypt/KEY       403 with a token in memory: one fresh login
//! ```
//!
//! A tenant declares the address: the host connects only where it may fetch images from. Answers are untrusted: they are bounded in size
//! and time, redirects are not followed, and a text that has a secret in it is in no message.

mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use berth_qemu::machine::{DISK_KEY_LENGTH, DiskKey};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::LinuxSystem;
use super::images::LinuxImages;
use crate::{Result, SystemError, VaultAccess, VaultLogin, VaultProblem, Vaults};
use server::{Server, failed};

/// The maximum number of tokens in memory.
const MAX_SESSIONS: usize = 64;
/// The maximum length of a token and of an encrypted key.
const MAX_TEXT: usize = 4096;
/// How long a token is used that has no lease, or a longer one.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The time limits of an operation.
#[derive(Clone, Copy, Debug)]
struct Limits {
    connect: Duration,
    /// Of all its requests, with their answers.
    whole: Duration,
}

const LIMITS: Limits = Limits { connect: Duration::from_secs(5), whole: Duration::from_secs(10) };

/// The tokens of logins.
pub(super) struct LinuxVaults {
    limits: Limits,
    sessions: Mutex<BTreeMap<Login, Session>>,
}

/// A login by AppRole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Login {
    address: String,
    namespace: Option<String>,
    role_id: String,
    /// The hash of the secret ID.
    secret: [u8; 32],
}

struct Session {
    token: SecretString,
    /// Afterwards a new login is made.
    until: Instant,
}

impl fmt::Debug for LinuxVaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinuxVaults").field("sessions", &self.sessions().len()).finish()
    }
}

impl Default for LinuxVaults {
    fn default() -> Self {
        Self { limits: LIMITS, sessions: Mutex::default() }
    }
}

impl LinuxVaults {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Login, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls an operation of the transit engine with the key.
    async fn transit(
        &self,
        images: &LinuxImages,
        access: &VaultAccess,
        operation: &str,
        body: &Value,
    ) -> Result<Value> {
        let server = Server::new(images, access, self.limits.connect)?;
        let path = format!("{}/{operation}/{}", access.mount, access.key);
        let work = self.with_token(&server, access, &path, body);
        match tokio::time::timeout(self.limits.whole, work).await {
            Ok(answer) => answer,
            Err(_) => Err(server.failed(
                VaultProblem::Unreachable,
                "no complete answer came in time: see that this host reaches it".to_owned(),
            )),
        }
    }

    async fn with_token(
        &self,
        server: &Server<'_>,
        access: &VaultAccess,
        path: &str,
        body: &Value,
    ) -> Result<Value> {
        let (role_id, secret_id) = match &access.login {
            VaultLogin::Token(token) => return server.post(path, token, body).await,
            VaultLogin::AppRole { role_id, secret_id } => (role_id, secret_id),
        };
        let login = Login {
            address: access.address.clone(),
            namespace: access.namespace.clone(),
            role_id: role_id.clone(),
            secret: Sha256::digest(secret_id.expose_secret().as_bytes()).into(),
        };
        if let Some(token) = self.kept(&login) {
            match server.post(path, &token, body).await {
                // The token may have been revoked.
                Err(SystemError::Vault { problem: VaultProblem::Denied, .. }) => {
                    self.sessions().remove(&login);
                }
                answer => return answer,
            }
        }
        let token = self.log_in(server, login, secret_id).await?;
        server.post(path, &token, body).await
    }

    fn kept(&self, login: &Login) -> Option<SecretString> {
        let sessions = self.sessions();
        sessions.get(login).filter(|session| Instant::now() < session.until).map(|found| found.token.clone())
    }

    async fn log_in(
        &self,
        server: &Server<'_>,
        login: Login,
        secret_id: &SecretString,
    ) -> Result<SecretString> {
        let body = json!({"role_id": login.role_id, "secret_id": secret_id.expose_secret()});
        let answer = server.log_in(&body).await?;
        let token = answer["auth"]["client_token"].as_str().filter(|token| is_text(token));
        let token = token.ok_or_else(|| {
            server.failed(VaultProblem::Unreachable, "its answer to the login has no token".to_owned())
        })?;
        let token = SecretString::from(token.to_owned());
        let lease = match answer["auth"]["lease_duration"].as_u64() {
            None | Some(0) => LONGEST_LEASE,
            Some(seconds) => Duration::from_secs(seconds).min(LONGEST_LEASE),
        };
        let now = Instant::now();
        let mut sessions = self.sessions();
        sessions.retain(|_, session| now < session.until);
        if sessions.len() >= MAX_SESSIONS {
            sessions.clear();
        }
        sessions.insert(login, Session { token: token.clone(), until: now + lease * 2 / 3 });
        Ok(token)
    }
}

/// Whether an answer has a token or an encrypted key, and not something to fill memory and messages with.
fn is_text(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[async_trait]
impl Vaults for LinuxSystem {
    async fn encrypt_key(&self, vault: &VaultAccess, key: &DiskKey) -> Result<String> {
        let body = json!({"plaintext": BASE64.encode(key.bytes())});
        let answer = self.vaults.transit(&self.images, vault, "encrypt", &body).await?;
        let text = answer["data"]["ciphertext"].as_str();
        let text = text.filter(|text| text.starts_with("vault:") && is_text(text));
        text.map(str::to_owned).ok_or_else(|| {
            failed(vault, VaultProblem::Unreachable, "its answer has no encrypted key: is it a Vault?")
        })
    }

    async fn decrypt_key(&self, vault: &VaultAccess, encrypted: &str) -> Result<DiskKey> {
        let body = json!({"ciphertext": encrypted});
        let answer = self.vaults.transit(&self.images, vault, "decrypt", &body).await?;
        let Some(text) = answer["data"]["plaintext"].as_str() else {
            let detail = "its answer has no decrypted key: is it a Vault?";
            return Err(failed(vault, VaultProblem::Unreachable, detail));
        };
        let bytes = BASE64.decode(text).ok().and_then(|bytes| <[u8; DISK_KEY_LENGTH]>::try_from(bytes).ok());
        bytes
            .map(DiskKey::new)
            .ok_or_else(|| failed(vault, VaultProblem::Refused, "what it has decrypted is no key of a disk"))
    }
}
