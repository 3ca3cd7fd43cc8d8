//! The keys of encrypted volumes that the host may use, in memory only: by their identifiers, which the notes beside the volumes have.

use std::collections::BTreeMap;
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

/// The keys in memory. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Keyring(Arc<Mutex<BTreeMap<String, DiskKey>>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &self.keys().len()).finish()
    }
}

impl Keyring {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, DiskKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: &str, key: DiskKey) {
        self.keys().insert(id.to_owned(), key);
    }

    pub(crate) fn remove(&self, id: &str) {
        self.keys().remove(id);
    }

    pub(crate) fn get(&self, id: &str) -> Option<DiskKey> {
        self.keys().get(id).cloned()
    }

    /// Returns the key of a volume or a snapshot. None: it is not encrypted.
    ///
    /// *Errors*: [`SystemError::KeyMissing`].
    pub(crate) fn key_of(&self, volume: &str, sealed: Option<&SealedKey>) -> Result<Option<DiskKey>> {
        let Some(sealed) = sealed else { return Ok(None) };
        let missing =
            || SystemError::KeyMissing { id: volume.to_owned(), wrapped_by: sealed.wrapped_by.clone() };
        self.get(&sealed.id).ok_or_else(missing).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_while_it_is_in_the_keyring_and_never_printed() {
        let keyring = Keyring::default();
        let sealed = SealedKey {
            id: "k-1".into(),
            provider: "Secret".into(),
            wrapped_by: "ns/default".into(),
            wrapping_key_id: "w-1".into(),
            generation: 1,
            sealed: "AAAA".into(),
        };
        let missing = keyring.key_of("v-1", Some(&sealed));
        assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "{missing:?}");
        assert_eq!(keyring.key_of("v-1", None).expect("not encrypted"), None);
        let key = DiskKey::new([7; 32]);
        keyring.clone().add("k-1", key.clone());
        assert_eq!(keyring.key_of("v-1", Some(&sealed)).expect("known"), Some(key));
        assert_eq!(format!("{keyring:?}"), "Keyring { keys: 1 }");
        keyring.remove("k-1");
        assert_eq!(keyring.get("k-1"), None);
    }
}
