//! The keys of KeyClasses that were read, and the keys of disks that are being made: in memory only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::{KeyClass, Readiness, Reason};
use berth_host::{SealedKey, System};
use jiff::{SignedDuration, Timestamp};
use kube::{Client, ResourceExt};

use crate::credentials::{Secrets, Unread};
use crate::sealing::{WrappingKey, new_disk_key};

/// How long a key that was read is used before its Secret is read again.
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

    /// Reads the key of a class.
    pub(crate) async fn wrapping_key(
        &self,
        class: &KeyClass,
        now: Timestamp,
    ) -> Result<Arc<WrappingKey>, Missing> {
        let (namespace, secret) = (class.namespace().unwrap_or_default(), &class.spec.secret);
        let name = format!("{namespace}/{}", class.name_any());
        let known = locked(&self.read).get(&name).cloned();
        if let Some((at, key)) = known
            && now.duration_since(at) < FRESH
        {
            return Ok(key);
        }
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
            && self.system.unlocked(&sealed.id).is_some()
        {
            return Ok(sealed.clone());
        }
        let key = new_disk_key()?;
        let sealed = with.seal(&key, 1)?;
        self.system.unlock(&sealed.id, key);
        if let Some(former) = new.insert(volume.to_owned(), sealed.clone()) {
            self.system.lock(&former.id);
        }
        Ok(sealed)
    }

    /// Forgets that a key was new: the file is there, with this key.
    pub(crate) fn made(&self, volume: &str, key: Option<&SealedKey>) {
        let former = locked(&self.new).remove(volume);
        if let Some(unused) = former.filter(|former| key.is_none_or(|key| key.id != former.id)) {
            self.system.lock(&unused.id);
        }
    }
}
