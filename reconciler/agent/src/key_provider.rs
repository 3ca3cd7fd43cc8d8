//! The keys of KeyClasses by their places: in a Secret, with which this host seals the keys of disks itself, or in a Vault, which does it.
//!
//! ```text
//!  Secret   read by this host      AES-256-GCM here       sealed: nonce, data and tag
//!  Vault    stays in the Vault     encrypt and decrypt    sealed: vault:vN:…
//! ```

use berth_api::{Readiness, Reason};
use berth_host::{SealedKey, System, SystemError, VaultAccess, VaultProblem};
use berth_qemu::machine::DiskKey;

use crate::error::{is_stalled, reason_of};
use crate::sealing::{WrappingKey, id_of_disk_key, id_of_vault_key};

/// The provider of keys that a Vault has sealed.
const VAULT: &str = "Vault";

/// Why a key is not known: whether the key that the host may still have in memory is to be forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) readiness: Readiness,
    pub(crate) is_gone: bool,
}

impl Missing {
    /// The key cannot be used, and nothing is known against the one in memory.
    pub(crate) fn wrong(text: String) -> Self {
        Self { readiness: Readiness::Stalled(Reason::WrongKey, text), is_gone: false }
    }
}

/// The key of a class.
#[derive(Debug)]
pub(crate) enum KeyProvider {
    Secret(Box<WrappingKey>),
    Vault(Box<VaultKey>),
}

/// A key that a Vault has.
#[derive(Debug)]
pub(crate) struct VaultKey {
    access: VaultAccess,
    id: String,
    /// `NAMESPACE/NAME` of the KeyClass.
    class: String,
}

impl VaultKey {
    pub(crate) fn new(class: &str, access: VaultAccess) -> Self {
        let id = id_of_vault_key(access.namespace.as_deref(), &access.mount, &access.key);
        Self { access, id, class: class.to_owned() }
    }

    /// *Guarantees*: the Vault has opened the sealed key once. It replaces the former one, which may be the only way to the data.
    async fn seal(&self, system: &dyn System, key: &DiskKey, generation: u32) -> Result<SealedKey, Missing> {
        let sealed = system.encrypt_key(&self.access, key).await.map_err(missing)?;
        let sealed = SealedKey {
            id: id_of_disk_key(key),
            provider: VAULT.to_owned(),
            wrapped_by: self.class.clone(),
            wrapping_key_id: self.id.clone(),
            generation,
            sealed,
        };
        // The policy may permit the one and not the other.
        self.open(system, &sealed).await?;
        Ok(sealed)
    }

    async fn open(&self, system: &dyn System, sealed: &SealedKey) -> Result<DiskKey, Missing> {
        let wrong = |text: String| Missing { is_gone: true, ..Missing::wrong(text) };
        if sealed.provider != VAULT || sealed.wrapping_key_id != self.id {
            return Err(wrong(format!(
                "the key of KeyClass {} is {} of a Vault, and the key of the disk is protected by {} of a {}",
                self.class, self.id, sealed.wrapping_key_id, sealed.provider
            )));
        }
        let key = system.decrypt_key(&self.access, &sealed.sealed).await.map_err(missing)?;
        // The Vault may answer with the key of another disk: its answer is bound to none.
        match id_of_disk_key(&key) == sealed.id {
            true => Ok(key),
            false => Err(wrong(format!("the Vault of KeyClass {} has decrypted another key", self.class))),
        }
    }
}

impl KeyProvider {
    /// `NAMESPACE/NAME` of the KeyClass.
    pub(crate) fn class(&self) -> &str {
        match self {
            Self::Secret(key) => &key.class,
            Self::Vault(key) => &key.class,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Secret(key) => &key.id,
            Self::Vault(key) => &key.id,
        }
    }

    /// Whether each use of the key is a request to a server.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Vault(_))
    }

    /// Seals the key of a disk for the n-th time.
    pub(crate) async fn seal(
        &self,
        system: &dyn System,
        key: &DiskKey,
        generation: u32,
    ) -> Result<SealedKey, Missing> {
        match self {
            Self::Secret(with) => with.seal(key, generation).map_err(Missing::wrong),
            Self::Vault(with) => with.seal(system, key, generation).await,
        }
    }

    /// *Errors*: it was sealed with another key, is damaged, or the Vault does not decrypt it.
    pub(crate) async fn open(&self, system: &dyn System, sealed: &SealedKey) -> Result<DiskKey, Missing> {
        match self {
            Self::Secret(with) => {
                with.open(sealed).map_err(|text| Missing { is_gone: true, ..Missing::wrong(text) })
            }
            Self::Vault(with) => with.open(system, sealed).await,
        }
    }
}

/// A Vault that does not answer takes no key away, and one that refuses does.
fn missing(error: SystemError) -> Missing {
    let is_gone = match &error {
        SystemError::Vault { problem, .. } => *problem != VaultProblem::Unreachable,
        _ => false,
    };
    let (reason, text) = (reason_of(&error), error.chain());
    let readiness = match is_stalled(&error) {
        true => Readiness::Stalled(reason, text),
        false => Readiness::Reconciling(reason, text),
    };
    Missing { readiness, is_gone }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_engine::RuntimeClock;
    use berth_host::VaultLogin;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;

    use super::*;
    use crate::sealing::new_disk_key;

    const ADDRESS: &str = "https://vault.example:8200";

    fn vault(key: &str, token: &str) -> KeyProvider {
        let access = VaultAccess {
            shown: "KeyClass ns/vault".to_owned(),
            address: ADDRESS.to_owned(),
            mount: "transit".to_owned(),
            key: key.to_owned(),
            namespace: None,
            ca: None,
            login: VaultLogin::Token(token.to_owned().into()),
        };
        KeyProvider::Vault(Box::new(VaultKey::new("ns/vault", access)))
    }

    fn system() -> FakeSystem {
        let system = FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH)));
        system.add_vault(ADDRESS, "canary", "berth");
        system
    }

    #[tokio::test(start_paused = true)]
    async fn a_vault_seals_and_opens_and_no_other_key_does() {
        let (system, own) = (system(), vault("berth", "canary"));
        let key = new_disk_key().expect("random");
        let sealed = own.seal(&system, &key, 1).await.expect("sealed");
        assert_eq!((sealed.provider.as_str(), sealed.wrapped_by.as_str()), ("Vault", "ns/vault"));
        assert_eq!(own.open(&system, &sealed).await.expect("opened"), key);
        let other = vault("other", "canary").open(&system, &sealed).await.expect_err("another key");
        assert!(other.is_gone && other.readiness.reason() == Reason::WrongKey, "{other:?}");
        let of_another = SealedKey { id: "of-another-disk".into(), ..sealed };
        let swapped = own.open(&system, &of_another).await.expect_err("another disk");
        assert!(swapped.is_gone && swapped.readiness.message().contains("another key"), "{swapped:?}");
        assert!(!format!("{own:?}").contains("canary"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_not_sealed_by_a_vault_that_does_not_open_it_again() {
        let (system, own) = (system(), vault("berth", "canary"));
        system.set_vault_decrypts(ADDRESS, false);
        let missing = own.seal(&system, &new_disk_key().expect("random"), 1).await.expect_err("not opened");
        assert_eq!(missing.readiness.reason(), Reason::VaultAccessDenied);
    }

    #[tokio::test(start_paused = true)]
    async fn a_vault_that_is_away_takes_no_key_away_and_one_that_refuses_does() {
        let (system, own) = (system(), vault("berth", "canary"));
        let sealed = own.seal(&system, &new_disk_key().expect("random"), 1).await.expect("sealed");
        for (problem, reason, is_gone) in [
            (VaultProblem::Unreachable, Reason::VaultUnreachable, false),
            (VaultProblem::Denied, Reason::VaultAccessDenied, true),
            (VaultProblem::NoKey, Reason::VaultKeyMissing, true),
            (VaultProblem::Refused, Reason::WrongKey, true),
        ] {
            system.set_vault_problem(ADDRESS, Some(problem));
            let missing = own.open(&system, &sealed).await.expect_err("no key");
            assert_eq!((missing.readiness.reason(), missing.is_gone), (reason, is_gone));
            assert_eq!(matches!(missing.readiness, Readiness::Stalled(..)), is_gone);
        }
    }
}
