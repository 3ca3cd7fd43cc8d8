//! The keys of encrypted volumes that the host may use, in memory only: by their identifiers, which the notes beside the volumes have.
//!
//! A volume, its snapshots and its copies share one key, and each of them holds it by its own class: where the class of one ends, the
//! others keep the key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::machine::DiskKey;
use serde::{Deserialize, Serialize};

use crate::{Result, SystemError};

/// The key of a volume as it is kept beside its file: sealed with a wrapping key that the host does not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedKey {
    /// The identifier of the key itself, which all files of the volume, its snapshots and its copies share.
    pub id: String,
    /// Where the wrapping key comes from.
    pub provider: String,
    /// The name of the wrapping key, for its owner.
    pub wrapped_by: String,
    /// The identifier of the wrapping key.
    #[serde(rename = "wrappingKeyID")]
    pub wrapping_key_id: String,
    /// How often the key was wrapped.
    pub generation: u32,
    /// The key, encrypted with the wrapping key.
    pub sealed: String,
}

/// A key with the volumes and snapshots that hold it; never without one.
struct Held {
    key: DiskKey,
    holders: BTreeSet<String>,
}

/// The keys in memory. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Keyring(Arc<Mutex<BTreeMap<String, Held>>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &self.keys().len()).finish()
    }
}

impl Keyring {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a volume or a snapshot hold a key. Returns false if it held that before.
    pub(crate) fn add(&self, id: &str, holder: &str, key: DiskKey) -> bool {
        let mut keys = self.keys();
        let held = keys.entry(id.to_owned()).or_insert_with(|| Held { key, holders: BTreeSet::new() });
        held.holders.insert(holder.to_owned())
    }

    /// Ends that a volume or a snapshot holds a key. The key goes with its last holder.
    pub(crate) fn remove(&self, id: &str, holder: &str) {
        let mut keys = self.keys();
        if let Some(held) = keys.get_mut(id) {
            held.holders.remove(holder);
            if held.holders.is_empty() {
                keys.remove(id);
            }
        }
    }

    /// Ends that others than these hold keys.
    pub(crate) fn keep(&self, holders: &BTreeSet<String>) {
        self.keys().retain(|_, held| {
            held.holders.retain(|holder| holders.contains(holder));
            !held.holders.is_empty()
        });
    }

    /// Returns the key that a volume or a snapshot holds.
    pub(crate) fn get(&self, id: &str, holder: &str) -> Option<DiskKey> {
        self.keys().get(id).filter(|held| held.holders.contains(holder)).map(|held| held.key.clone())
    }

    /// Returns the key of a volume or a snapshot, which has to hold it. None: it is not encrypted.
    ///
    /// *Errors*: [`SystemError::KeyMissing`].
    pub(crate) fn key_of(&self, holder: &str, sealed: Option<&SealedKey>) -> Result<Option<DiskKey>> {
        let Some(sealed) = sealed else { return Ok(None) };
        self.get(&sealed.id, holder).ok_or_else(|| missing(holder, sealed)).map(Some)
    }

    /// Returns the key of a snapshot: of one without an owner, as it is kept while a backup is made from it, from any that has the same. None:
    /// it is not encrypted.
    ///
    /// *Errors*: [`SystemError::KeyMissing`].
    pub(crate) fn key_of_snapshot(
        &self,
        id: &str,
        is_owned: bool,
        sealed: Option<&SealedKey>,
    ) -> Result<Option<DiskKey>> {
        if is_owned { self.key_of(id, sealed) } else { self.shared_key_of(id, sealed) }
    }

    /// Returns the key of a file that no object names any more, from any of its volume, snapshots and copies. None: it is not
    /// encrypted.
    ///
    /// *Errors*: [`SystemError::KeyMissing`].
    pub(crate) fn shared_key_of(&self, id: &str, sealed: Option<&SealedKey>) -> Result<Option<DiskKey>> {
        let Some(sealed) = sealed else { return Ok(None) };
        let key = self.keys().get(&sealed.id).map(|held| held.key.clone());
        key.ok_or_else(|| missing(id, sealed)).map(Some)
    }
}

fn missing(id: &str, sealed: &SealedKey) -> SystemError {
    SystemError::KeyMissing { id: id.to_owned(), wrapped_by: sealed.wrapped_by.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> SealedKey {
        SealedKey {
            id: "k-1".into(),
            provider: "Secret".into(),
            wrapped_by: "ns/default".into(),
            wrapping_key_id: "w-1".into(),
            generation: 1,
            sealed: "AAAA".into(),
        }
    }

    #[test]
    fn a_key_is_known_while_it_is_in_the_keyring_and_never_printed() {
        let (keyring, sealed) = (Keyring::default(), sealed());
        let missing = keyring.key_of("v-1", Some(&sealed));
        assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "{missing:?}");
        assert_eq!(keyring.key_of("v-1", None).expect("not encrypted"), None);
        let key = DiskKey::new([7; 32]);
        assert!(keyring.clone().add("k-1", "v-1", key.clone()));
        assert!(!keyring.add("k-1", "v-1", key.clone()), "it was known");
        assert_eq!(keyring.key_of("v-1", Some(&sealed)).expect("known"), Some(key));
        assert_eq!(format!("{keyring:?}"), "Keyring { keys: 1 }");
        keyring.remove("k-1", "v-1");
        assert_eq!(keyring.get("k-1", "v-1"), None);
    }

    #[test]
    fn a_copy_keeps_the_key_that_its_source_loses_and_the_key_goes_with_the_last_of_them() {
        let (keyring, sealed, key) = (Keyring::default(), sealed(), DiskKey::new([7; 32]));
        for holder in ["v-1", "v-copy", "s-1"] {
            assert!(keyring.add("k-1", holder, key.clone()), "{holder}");
        }
        keyring.remove("k-1", "v-1");
        assert!(keyring.key_of("v-1", Some(&sealed)).is_err(), "its class is not known any more");
        assert_eq!(keyring.key_of("v-copy", Some(&sealed)).expect("held"), Some(key.clone()));
        assert_eq!(keyring.shared_key_of("s-deleted", Some(&sealed)).expect("held"), Some(key));
        keyring.keep(&BTreeSet::from(["s-1".to_owned(), "v-other".to_owned()]));
        assert_eq!((keyring.get("k-1", "v-copy"), keyring.get("k-1", "s-1").is_some()), (None, true));
        keyring.keep(&BTreeSet::new());
        assert!(keyring.shared_key_of("s-1", Some(&sealed)).is_err());
        assert_eq!(format!("{keyring:?}"), "Keyring { keys: 0 }");
    }
}
