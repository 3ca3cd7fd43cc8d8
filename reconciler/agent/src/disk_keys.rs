//! The keys of KeyClasses that were read, and the keys of disks that are being made: in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::{KeyClass, Readiness, Reason};
use berth_host::{SealedKey, System};
use jiff::{SignedDuration, Timestamp};
use kube::{Client, ResourceExt};

use crate::credentials::{Secrets, Unread};
use crate::sealing::{WrappingKey, new_disk_key};

/// How long a key that was read opens others before its Secret is read again.
const FRESH: SignedDuration = SignedDuration::from_secs(60);

/// The keys of classes that were read, and the keys of disks that are being made.
pub(crate) struct DiskKeys {
    secrets: Secrets,
    system: Arc<dyn System>,
    /// By the names of the classes.
    read: Mutex<BTreeMap<String, (Timestamp, Arc<WrappingKey>)>>,
    /// By the volumes.
    new: Mutex<BTreeMap<String, SealedKey>>,
}

/// The name of a class as the sealed keys have it.
pub(crate) fn name_of(class: &KeyClass) -> String {
    format!("{}/{}", class.namespace().unwrap_or_default(), class.name_any())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a key is not known: whether the key that the host may still have in memory is to be forgotten.
pub(crate) struct Missing {
    pub(crate) readiness: Readiness,
    pub(crate) is_gone: bool,
}

impl DiskKeys {
    pub(crate) fn new(client: Client, system: Arc<dyn System>) -> Self {
        Self { secrets: Secrets::new(client), system, read: Mutex::default(), new: Mutex::default() }
    }

    /// Returns the key of a class to open others with, which may have been read a moment ago.
    pub(crate) async fn opening_key(
        &self,
        class: &KeyClass,
        now: Timestamp,
    ) -> Result<Arc<WrappingKey>, Missing> {
        let known = locked(&self.read).get(&name_of(class)).cloned();
        match known {
            Some((at, key)) if now.duration_since(at) < FRESH => Ok(key),
            _ => self.sealing_key(class, now).await,
        }
    }

    /// Reads the key of a class from its Secret now: one that was replaced meanwhile seals nothing any more, as nothing could open it.
    pub(crate) async fn sealing_key(
        &self,
        class: &KeyClass,
        now: Timestamp,
    ) -> Result<Arc<WrappingKey>, Missing> {
        let (namespace, secret) = (class.namespace().unwrap_or_default(), &class.spec.secret);
        let name = name_of(class);
        locked(&self.read).remove(&name);
        let text = self.secrets.entry(&namespace, secret.name.as_str(), &secret.key).await;
        let text = text.map_err(|unread| match unread {
            Unread::Waits(readiness) => Missing { readiness, is_gone: false },
            Unread::Gone(text) => {
                Missing { readiness: Readiness::Reconciling(Reason::WaitingForSecret, text), is_gone: true }
            }
        })?;
        let key = WrappingKey::parse(&name, &text).map_err(|problem| {
            let text = format!("{} of Secret {namespace}/{}: {problem}", secret.key, secret.name);
            Missing { readiness: Readiness::Stalled(Reason::WrongKey, text), is_gone: true }
        })?;
        let key = Arc::new(key);
        locked(&self.read).insert(name, (now, key.clone()));
        Ok(key)
    }

    /// Returns the key of a disk that has no file yet: the same one until the file is there.
    pub(crate) fn new_key(&self, volume: &str, with: &WrappingKey) -> Result<SealedKey, String> {
        let mut new = locked(&self.new);
        if let Some(sealed) = new.get(volume)
            && sealed.wrapped_by == with.class
            && sealed.wrapping_key_id == with.id
            && self.system.unlocked(&sealed.id, volume).is_some()
        {
            return Ok(sealed.clone());
        }
        let key = new_disk_key()?;
        let sealed = with.seal(&key, 1)?;
        self.system.unlock(&sealed.id, volume, key);
        if let Some(former) = new.insert(volume.to_owned(), sealed.clone()) {
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
