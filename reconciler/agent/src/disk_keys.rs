//! The keys of KeyClasses that were read, and the keys of disks that are being made: in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{KeyClass, KeySecret, Readiness, Reason, VaultKey as DeclaredVault, VaultSecret};
use berth_host::{SealedKey, System, VaultAccess, VaultLogin};
use berth_qemu::machine::DiskKey;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use crate::credentials::{Secrets, Unread};
use crate::key_provider::{KeyProvider, Missing, VaultKey};
use crate::sealing::{WrappingKey, new_disk_key};

/// How long a key that was read opens others before its Secret is read again, and how long a Vault that has opened one is not asked again.
const FRESH: SignedDuration = SignedDuration::from_secs(60);
/// How long a Vault that did not answer is not asked again: many disks may wait for it.
const SILENCE: Duration = Duration::from_secs(8);

/// The keys of classes that were read, and the keys of disks that are being made.
pub(crate) struct DiskKeys {
    secrets: Secrets,
    system: Arc<dyn System>,
    /// By the names of the classes.
    read: Mutex<BTreeMap<String, (Timestamp, Arc<KeyProvider>)>>,
    /// By the volumes.
    new: Mutex<BTreeMap<String, SealedKey>>,
    /// When Vaults have opened keys, and which, by the volumes and snapshots that hold them.
    opened: Mutex<BTreeMap<String, (Timestamp, SealedKey)>>,
    /// When Vaults have not answered, by the names of the classes.
    silent: Mutex<BTreeMap<String, (Instant, Missing)>>,
}

/// The name of a class as the sealed keys have it.
pub(crate) fn name_of(class: &KeyClass) -> String {
    format!("{}/{}", class.namespace().unwrap_or_default(), class.name_any())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskKeys {
    pub(crate) fn new(client: Client, system: Arc<dyn System>) -> Self {
        Self {
            secrets: Secrets::new(client),
            system,
            read: Mutex::default(),
            new: Mutex::default(),
            opened: Mutex::default(),
            silent: Mutex::default(),
        }
    }

    /// Returns the key of a class to open others with, which may have been read a moment ago.
    pub(crate) async fn opening_key(
        &self,
        class: &KeyClass,
        now: Timestamp,
    ) -> Result<Arc<KeyProvider>, Missing> {
        let known = locked(&self.read).get(&name_of(class)).cloned();
        match known {
            Some((at, key)) if now.duration_since(at) < FRESH => Ok(key),
            _ => self.sealing_key(class, now).await,
        }
    }

    /// Reads the key of a class, or what opens its Vault, from its Secrets now: one that was replaced meanwhile seals nothing any more, as
    /// nothing could open it.
    pub(crate) async fn sealing_key(
        &self,
        class: &KeyClass,
        now: Timestamp,
    ) -> Result<Arc<KeyProvider>, Missing> {
        let name = name_of(class);
        locked(&self.read).remove(&name);
        let key = match (&class.spec.secret, &class.spec.vault) {
            (Some(secret), _) => KeyProvider::Secret(Box::new(self.key_in_secret(class, secret).await?)),
            (None, Some(vault)) => {
                let access = self.vault_access(class, vault).await?;
                KeyProvider::Vault(Box::new(VaultKey::new(&name, access)))
            }
            (None, None) => {
                let text = format!("KeyClass {name} has neither secret nor vault");
                let readiness = Readiness::Stalled(Reason::InvalidSpec, text);
                return Err(Missing { readiness, is_gone: false });
            }
        };
        let key = Arc::new(key);
        locked(&self.read).insert(name, (now, key.clone()));
        Ok(key)
    }

    async fn key_in_secret(&self, class: &KeyClass, secret: &KeySecret) -> Result<WrappingKey, Missing> {
        let text = self.entry(class, secret.name.as_str(), &secret.key).await?;
        WrappingKey::parse(&name_of(class), &text).map_err(|problem| {
            let namespace = class.namespace().unwrap_or_default();
            let text = format!("{} of Secret {namespace}/{}: {problem}", secret.key, secret.name);
            Missing { readiness: Readiness::Stalled(Reason::WrongKey, text), is_gone: true }
        })
    }

    async fn vault_access(&self, class: &KeyClass, vault: &DeclaredVault) -> Result<VaultAccess, Missing> {
        let named = |secret: &VaultSecret, usual: &str| {
            let key = secret.key.clone().unwrap_or_else(|| usual.to_owned());
            (secret.name.to_string(), key)
        };
        let login = match (&vault.token_secret, &vault.app_role) {
            (Some(secret), _) => {
                let (name, key) = named(secret, "token");
                VaultLogin::Token(self.entry(class, &name, &key).await?.into())
            }
            (None, Some(role)) => {
                let (name, key) = named(&role.secret, "secretID");
                let secret_id = self.entry(class, &name, &key).await?.into();
                VaultLogin::AppRole { role_id: role.role_id.clone(), secret_id }
            }
            (None, None) => {
                let text =
                    format!("vault of KeyClass {} has neither tokenSecret nor appRole", name_of(class));
                let readiness = Readiness::Stalled(Reason::InvalidSpec, text);
                return Err(Missing { readiness, is_gone: false });
            }
        };
        let ca = match &vault.ca_secret {
            Some(secret) => {
                let (name, key) = named(secret, "ca.crt");
                Some(self.entry(class, &name, &key).await?)
            }
            None => None,
        };
        Ok(VaultAccess {
            shown: format!("Vault of KeyClass {}", name_of(class)),
            address: vault.address.clone(),
            mount: vault.mount.clone(),
            key: vault.key.clone(),
            namespace: vault.namespace.clone(),
            ca,
            login,
        })
    }

    /// Reads an entry of a Secret in the namespace of a class.
    async fn entry(&self, class: &KeyClass, name: &str, key: &str) -> Result<String, Missing> {
        let namespace = class.namespace().unwrap_or_default();
        self.secrets.entry(&namespace, name, key).await.map_err(|unread| match unread {
            Unread::Waits(readiness) => Missing { readiness, is_gone: false },
            Unread::Gone(text) => {
                Missing { readiness: Readiness::Reconciling(Reason::WaitingForSecret, text), is_gone: true }
            }
        })
    }

    /// Opens a key for a volume or a snapshot. A Vault is asked once a minute for each of them.
    pub(crate) async fn open(
        &self,
        with: &KeyProvider,
        sealed: &SealedKey,
        holder: &str,
        now: Timestamp,
    ) -> Result<DiskKey, Missing> {
        if !with.is_remote() {
            return with.open(self.system.as_ref(), sealed).await;
        }
        let known = locked(&self.opened).get(holder).cloned();
        if let Some((at, before)) = known
            && before == *sealed
            && now.duration_since(at) < FRESH
            && let Some(key) = self.system.unlocked(&sealed.id, holder)
        {
            return Ok(key);
        }
        let opened = self.asked(with, with.open(self.system.as_ref(), sealed)).await;
        let mut times = locked(&self.opened);
        match &opened {
            Ok(_) => times.insert(holder.to_owned(), (now, sealed.clone())),
            Err(_) => times.remove(holder),
        };
        drop(times);
        opened
    }

    /// Seals the key of a disk for the n-th time.
    pub(crate) async fn seal(
        &self,
        with: &KeyProvider,
        key: &DiskKey,
        generation: u32,
    ) -> Result<SealedKey, Missing> {
        self.asked(with, with.seal(self.system.as_ref(), key, generation)).await
    }

    /// Does what may be a request to a Vault, unless that did not answer a moment ago.
    async fn asked<T>(
        &self,
        with: &KeyProvider,
        work: impl Future<Output = Result<T, Missing>>,
    ) -> Result<T, Missing> {
        if !with.is_remote() {
            return work.await;
        }
        let silent = locked(&self.silent).get(with.class()).cloned();
        if let Some((at, missing)) = silent
            && at.elapsed() < SILENCE
        {
            return Err(missing);
        }
        let done = work.await;
        locked(&self.silent).remove(with.class());
        if let Err(missing) = &done {
            // A token that was replaced is read the next time.
            locked(&self.read).remove(with.class());
            if !missing.is_gone {
                locked(&self.silent).insert(with.class().to_owned(), (Instant::now(), missing.clone()));
            }
        }
        done
    }

    /// Returns the key of a disk that has no file yet: the same one until the file is there.
    pub(crate) async fn new_key(&self, volume: &str, with: &KeyProvider) -> Result<SealedKey, Missing> {
        let known = locked(&self.new).get(volume).cloned();
        if let Some(sealed) = known
            && sealed.wrapped_by == with.class()
            && sealed.wrapping_key_id == with.id()
            && self.system.unlocked(&sealed.id, volume).is_some()
        {
            return Ok(sealed);
        }
        let key = new_disk_key().map_err(Missing::wrong)?;
        let sealed = self.seal(with, &key, 1).await?;
        self.system.unlock(&sealed.id, volume, key);
        let former = locked(&self.new).insert(volume.to_owned(), sealed.clone());
        if let Some(former) = former {
            self.system.lock(&former.id, volume);
        }
        Ok(sealed)
    }

    /// Returns the key that a file is being made with.
    pub(crate) fn key_in_making(&self, volume: &str) -> Option<SealedKey> {
        locked(&self.new).get(volume).cloned()
    }

    /// Forgets the keys of all other volumes and snapshots than these.
    pub(crate) fn keep(&self, holders: &BTreeSet<String>) {
        locked(&self.new).retain(|volume, _| holders.contains(volume));
        locked(&self.opened).retain(|holder, _| holders.contains(holder));
        self.system.keep_keys(holders);
    }

    /// Forgets that a key was new: the file is there, with this key.
    pub(crate) fn made(&self, volume: &str, key: Option<&SealedKey>) {
        let former = locked(&self.new).remove(volume);
        if let Some(unused) = former.filter(|former| key.is_none_or(|key| key.id != former.id)) {
            self.system.lock(&unused.id, volume);
        }
    }
}
