//! Keys in the transit engine of a Vault, which encrypts and decrypts the keys of disks and keeps its own.

use std::fmt;

use async_trait::async_trait;
use berth_qemu::machine::DiskKey;
use secrecy::SecretString;

use crate::Result;

/// The Vaults that a host can reach.
#[async_trait]
pub trait Vaults: Send + Sync + fmt::Debug + 'static {
    /// Has a Vault encrypt the key of a disk. Returns its answer, such as `vault:v1:…`.
    ///
    /// *Errors*: [`SystemError::Vault`](crate::SystemError::Vault), within ten seconds.
    async fn encrypt_key(&self, vault: &VaultAccess, key: &DiskKey) -> Result<String>;

    /// Has a Vault decrypt the key of a disk.
    ///
    /// *Errors*: [`SystemError::Vault`](crate::SystemError::Vault), within ten seconds.
    async fn decrypt_key(&self, vault: &VaultAccess, encrypted: &str) -> Result<DiskKey>;
}

/// A key in the transit engine of a Vault, and what opens that. Its secrets are never printed.
#[derive(Clone, Debug)]
pub struct VaultAccess {
    /// The owner of the key, for messages.
    pub shown: String,
    /// `https://HOST[:PORT]`, or `http://` with a loopback address.
    pub address: String,
    /// The path of the engine.
    pub mount: String,
    pub key: String,
    pub namespace: Option<String>,
    /// Certificates in PEM, trusted beside those of the system.
    pub ca: Option<String>,
    pub login: VaultLogin,
}

/// The way to a token.
#[derive(Clone, Debug)]
pub enum VaultLogin {
    Token(SecretString),
    AppRole { role_id: String, secret_id: SecretString },
}
