//! The keys of KeyClasses that were read, and the keys of disks that are being made: in memory only.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::sealing::{WrappingKey, id_of_disk_key, new_disk_key};
use crate::vault_requests::VaultRequests;

/// How long a key that was read opens others before its Secret is read again, and how long a Vault that has opened one is not asked again.
const FRESH: SignedDuration = SignedDuration::from_secs(60);
/// How long a key that a Vault has sealed is the answer to the same request.
const SEALED: Duration = Duration::from_secs(60);

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
    opens: VaultRequests<DiskKey>,
    seals: VaultRequests<SealedKey>,
    /// The keys that Vaults have sealed, by what they were asked.
    sealed: Mutex<BTreeMap<String, (Instant, SealedKey)>>,
    /// The new keys that Vaults have not sealed yet, by the volumes.
    unsealed: Mutex<BTreeMap<String, DiskKey>>,
}

/// The name of a class as the sealed keys have it.
pub(crate) fn name_of(class: &KeyClass) -> String {
    format!("{}/{}", class.namespace().unwrap_or_default(), class.name_any())
}

/// Whether a key that was read or opened at this time is used without another question. After the clock was set back, it is not known when
/// that was.
fn is_fresh(at: Timestamp, now: Timestamp) -> bool {
    (SignedDuration::ZERO..FRESH).contains(&now.duration_since(at))
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
            opens: VaultRequests::default(),
            seals: VaultRequests::default(),
            sealed: Mutex::default(),
            unsealed: Mutex::default(),
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
            Some((at, key)) if is_fresh(at, now) => Ok(key),
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
        with: &Arc<KeyProvider>,
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
            && is_fresh(at, now)
            && let Some(key) = self.system.unlocked(&sealed.id, holder)
        {
            return Ok(key);
        }
        let (provider, system, key) = (Arc::clone(with), Arc::clone(&self.system), sealed.clone());
        let work = async move { provider.open(system.as_ref(), &key).await };
        let name = format!("{holder} {} {}", with.id(), sealed.sealed);
        let opened = self.opens.ask(with.class(), &name, work).await;
        if opened.is_ok() {
            locked(&self.opened).insert(holder.to_owned(), (now, sealed.clone()));
        } else {
            locked(&self.opened).remove(holder);
            // A token that was replaced is read the next time.
            locked(&self.read).remove(with.class());
        }
        opened
    }

    /// Seals the key of a disk for the n-th time, for a volume.
    pub(crate) async fn seal(
        &self,
        with: &Arc<KeyProvider>,
        key: &DiskKey,
        generation: u32,
        volume: &str,
    ) -> Result<SealedKey, Missing> {
        if !with.is_remote() {
            return with.seal(self.system.as_ref(), key, generation).await;
        }
        let name = format!("{volume} {} {} {} {generation}", with.class(), with.id(), id_of_disk_key(key));
        let known = locked(&self.sealed).get(&name).cloned();
        if let Some((at, sealed)) = known
            && at.elapsed() < SEALED
        {
            return Ok(sealed);
        }
        let (provider, system, key) = (Arc::clone(with), Arc::clone(&self.system), key.clone());
        let work = async move { provider.seal(system.as_ref(), &key, generation).await };
        let sealed = self.seals.ask(with.class(), &name, work).await?;
        let mut all = locked(&self.sealed);
        all.retain(|_, (at, _)| at.elapsed() < SEALED);
        all.insert(name, (Instant::now(), sealed.clone()));
        Ok(sealed)
    }

    /// Returns the key of a disk that has no file yet: the same one until the file is there.
    pub(crate) async fn new_key(&self, volume: &str, with: &Arc<KeyProvider>) -> Result<SealedKey, Missing> {
        let known = locked(&self.new).get(volume).cloned();
        if let Some(sealed) = known
            && sealed.wrapped_by == with.class()
            && sealed.wrapping_key_id == with.id()
            && self.system.unlocked(&sealed.id, volume).is_some()
        {
            return Ok(sealed);
        }
        let unsealed = locked(&self.unsealed).get(volume).cloned();
        let key = match unsealed {
            Some(key) => key,
            None => new_disk_key().map_err(Missing::wrong)?,
        };
        if with.is_remote() {
            locked(&self.unsealed).insert(volume.to_owned(), key.clone());
        }
        let sealed = self.seal(with, &key, 1, volume).await?;
        locked(&self.unsealed).remove(volume);
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
        locked(&self.unsealed).retain(|volume, _| holders.contains(volume));
        locked(&self.sealed).retain(|_, (at, _)| at.elapsed() < SEALED);
        self.opens.forget_old();
        self.seals.forget_old();
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

#[test]
fn after_the_clock_was_set_back_the_key_of_a_class_is_read_again() {
    let at = |second| Timestamp::from_second(second).expect("a moment");
    assert!(is_fresh(at(1000), at(1000)) && is_fresh(at(1000), at(1059)));
    assert!(!is_fresh(at(1000), at(1060)), "its Secret may be gone since");
    assert!(!is_fresh(at(4600), at(1000)), "for an hour, its Secret would not be looked at");
}
