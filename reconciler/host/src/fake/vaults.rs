//! Vaults in memory, whose tokens and keys a test decides.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use berth_qemu::machine::{DISK_KEY_LENGTH, DiskKey};
use secrecy::ExposeSecret;

use super::FakeSystem;
use crate::{Result, SystemError, VaultAccess, VaultLogin, VaultProblem, Vaults};

/// A Vault with one key, which one token, or one secret ID, opens.
#[derive(Clone)]
pub(super) struct FakeVault {
    token: String,
    /// The name of the key, which also decides what it encrypts to.
    key: String,
    problem: Option<VaultProblem>,
    decrypts: bool,
}

impl std::fmt::Debug for FakeVault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeVault").field("key", &self.key).finish_non_exhaustive()
    }
}

impl FakeVault {
    /// No encryption: a text that differs by the name of the key.
    fn mask(&self, bytes: &mut [u8]) {
        for (byte, of) in bytes.iter_mut().zip(self.key.bytes().cycle()) {
            *byte ^= of;
        }
    }
}

impl FakeSystem {
    /// Makes a Vault with this key available at an address, or changes the one there.
    pub fn add_vault(&self, address: &str, token: &str, key: &str) {
        let vault = FakeVault { token: token.to_owned(), key: key.to_owned(), problem: None, decrypts: true };
        self.state().vaults.insert(address.to_owned(), vault);
    }

    /// Has the Vault at an address fail in this way, or not any more.
    pub fn set_vault_problem(&self, address: &str, problem: Option<VaultProblem>) {
        if let Some(vault) = self.state().vaults.get_mut(address) {
            vault.problem = problem;
        }
    }

    /// Sets whether the policy of the token at an address permits decryption.
    pub fn set_vault_decrypts(&self, address: &str, decrypts: bool) {
        if let Some(vault) = self.state().vaults.get_mut(address) {
            vault.decrypts = decrypts;
        }
    }

    fn vault(&self, access: &VaultAccess) -> Result<FakeVault> {
        let failed = |problem| failed(access, problem);
        let vault = self.state().vaults.get(&access.address).cloned();
        let vault = vault.ok_or_else(|| failed(VaultProblem::Unreachable))?;
        if let Some(problem) = vault.problem {
            return Err(failed(problem));
        }
        let secret = match &access.login {
            VaultLogin::Token(token) => token,
            VaultLogin::AppRole { secret_id, .. } => secret_id,
        };
        if vault.token != secret.expose_secret() {
            return Err(failed(VaultProblem::Denied));
        }
        if vault.key != access.key {
            return Err(failed(VaultProblem::NoKey));
        }
        Ok(vault)
    }
}

fn failed(access: &VaultAccess, problem: VaultProblem) -> SystemError {
    SystemError::Vault { vault: access.shown.clone(), problem, detail: format!("{problem:?}") }
}

#[async_trait]
impl Vaults for FakeSystem {
    async fn encrypt_key(&self, vault: &VaultAccess, key: &DiskKey) -> Result<String> {
        let work = async {
            let found = self.vault(vault)?;
            let mut bytes = *key.bytes();
            found.mask(&mut bytes);
            Ok(format!("vault:v1:{}", BASE64.encode(bytes)))
        };
        self.call("encrypt_key", work).await
    }

    async fn decrypt_key(&self, vault: &VaultAccess, encrypted: &str) -> Result<DiskKey> {
        let work = async {
            let found = self.vault(vault)?;
            if !found.decrypts {
                return Err(failed(vault, VaultProblem::Denied));
            }
            let text = encrypted.strip_prefix("vault:v1:").and_then(|text| BASE64.decode(text).ok());
            let bytes = text.and_then(|bytes| <[u8; DISK_KEY_LENGTH]>::try_from(bytes).ok());
            let mut bytes = bytes.ok_or_else(|| failed(vault, VaultProblem::Refused))?;
            found.mask(&mut bytes);
            Ok(DiskKey::new(bytes))
        };
        self.call("decrypt_key", work).await
    }
}
