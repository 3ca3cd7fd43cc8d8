//! The paths in the state directory and in the folders of pools, and the names that are valid as file names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::files;
use crate::SystemError;

/// The beginning of the names of folders with hard links to snapshots of which images are made, among those of the instances.
pub(super) const IMAGE_LINKS: &str = "image-";

/// The folders with the files of the pools that have one of their own, by the name of the pool. Those of shared pools are known once
/// they are declared.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolPlaces(Arc<RwLock<BTreeMap<String, PathBuf>>>);

impl PoolPlaces {
    pub(super) fn new(places: BTreeMap<String, PathBuf>) -> Self {
        Self(Arc::new(RwLock::new(places)))
    }

    pub(super) fn set(&self, pool: &str, place: PathBuf) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(pool.to_owned(), place);
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, PathBuf>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Paths in the state directory and in the folders of pools.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
    pool_places: PoolPlaces,
}

impl Layout {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), pool_places: PoolPlaces::default() }
    }

    /// Returns the layout with these pools in folders of their own.
    pub(super) fn with_pool_places(self, pool_places: PoolPlaces) -> Self {
        Self { pool_places, ..self }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(super) fn image(&self, digest: &str) -> PathBuf {
        self.images().join(digest)
    }

    /// The pools without a folder of their own, and the records of the folders of others.
    pub(super) fn pools(&self) -> PathBuf {
        self.root.join("pools")
    }

    /// Lists the names of all pools that have a folder, also of those that are away. Blocking.
    pub(super) fn pool_names(&self) -> Result<Vec<String>, SystemError> {
        let mut names: BTreeSet<String> = files::names(&self.pools())?.into_iter().collect();
        names.retain(|name| is_name(name));
        names.extend(self.pool_places.read().keys().cloned());
        Ok(names.into_iter().collect())
    }

    pub(super) fn has_own_folder(&self, pool: &str) -> bool {
        self.pool_places.read().contains_key(pool)
    }

    pub(super) fn pool(&self, pool: &str) -> PathBuf {
        let own = self.pool_places.read().get(pool).cloned();
        own.unwrap_or_else(|| self.pools().join(pool))
    }

    /// The pool that a file is in. None: it is in none.
    pub(super) fn pool_of(&self, file: &Path) -> Option<String> {
        let places = self.pool_places.read();
        let own = places.iter().find(|(_, folder)| file.starts_with(folder)).map(|(pool, _)| pool.clone());
        let in_state = || file.strip_prefix(self.pools()).ok().and_then(|path| path.iter().next()?.to_str());
        own.or_else(|| in_state().map(str::to_owned))
    }

    pub(super) fn volumes(&self, pool: &str) -> PathBuf {
        self.pool(pool).join("volumes")
    }

    pub(super) fn trash(&self, pool: &str) -> PathBuf {
        self.pool(pool).join("trash")
    }

    /// The files of snapshots.
    pub(super) fn snapshots(&self, pool: &str) -> PathBuf {
        self.pool(pool).join("snapshots")
    }

    /// Hard links to the snapshots below the instance's disks, on the pool's file system.
    pub(super) fn snapshot_links(&self, pool: &str, instance: &str) -> PathBuf {
        self.snapshot_readers(pool).join(instance)
    }

    pub(super) fn snapshot_readers(&self, pool: &str) -> PathBuf {
        self.pool(pool).join("readers")
    }

    pub(super) fn instances(&self) -> PathBuf {
        self.root.join("instances")
    }

    pub(super) fn instance(&self, instance: &str) -> PathBuf {
        self.instances().join(instance)
    }

    /// The record of the user that the instance's QEMU runs as.
    pub(super) fn user(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("user.json")
    }

    /// The saved state of the instance's machine.
    pub(super) fn state(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("saved.state")
    }

    /// The states of machines that snapshots keep.
    pub(super) fn kept_states(&self) -> PathBuf {
        self.root.join("memory")
    }

    pub(super) fn kept_state(&self, id: &str) -> PathBuf {
        self.kept_states().join(format!("{id}.state"))
    }

    pub(super) fn kept_note(&self, id: &str) -> PathBuf {
        self.kept_states().join(format!("{id}.json"))
    }

    /// Hard links to the base images of the instance's disks: QEMU has no access to the images themselves.
    pub(super) fn bases(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("images")
    }

    /// The memory of the instance's TPM.
    pub(super) fn tpm(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("tpm")
    }

    /// The records of the PCI devices that instances have.
    pub(super) fn pci(&self) -> PathBuf {
        self.root.join("pci")
    }

    /// The records of the USB devices that instances have.
    pub(super) fn usb(&self) -> PathBuf {
        self.root.join("usb")
    }

    /// The records of the vGPUs that instances have.
    pub(super) fn vgpus(&self) -> PathBuf {
        self.root.join("vgpus")
    }

    /// The private key of the host for WireGuard.
    pub(super) fn wireguard_key(&self) -> PathBuf {
        self.root.join("wireguard.key")
    }

    pub(super) fn networks(&self) -> PathBuf {
        self.root.join("network")
    }

    pub(super) fn network(&self, bridge: &str) -> PathBuf {
        self.networks().join(bridge)
    }
}

/// Whether a digest can be a file name: exactly 64 (SHA-256) or 128 (SHA-512) lower-case hexadecimal digits.
pub(super) fn is_digest(text: &str) -> bool {
    matches!(text.len(), 64 | 128) && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

pub(super) fn check_digest(text: &str) -> Result<(), SystemError> {
    check("checksum", text, is_digest(text), "64 or 128 lower-case hexadecimal digits")
}

/// Whether a volume id, instance id or pool name is valid: no slash, no leading dot or dash, nothing that needs
/// escaping.
pub(super) fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

pub(super) fn check_name(what: &'static str, text: &str) -> Result<(), SystemError> {
    check(what, text, is_name(text), "1 to 63 lower-case letters, digits and '-', not first '-'")
}

/// The kernel limits interface names to 15 characters; berth's are recognised by their prefix.
pub(super) fn check_link(what: &'static str, name: &str, prefix: &str) -> Result<(), SystemError> {
    let ok = is_name(name) && name.len() <= 15 && name.starts_with(prefix);
    check(what, name, ok, "at most 15 characters, with berth's prefix")
}

fn check(what: &'static str, value: &str, ok: bool, why: &'static str) -> Result<(), SystemError> {
    if ok { Ok(()) } else { Err(SystemError::Invalid { what, value: value.to_owned(), why }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_leaves_its_folder_is_a_name() {
        for bad in ["", ".", "..", "a/b", "../x", "-a", "A", "a b", "a\0", &"a".repeat(64)] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_name("v-0123456789abcdef"));
        assert!(!is_digest(&"A".repeat(64)) && !is_digest(&"a".repeat(65)));
        assert!(is_digest(&"a0".repeat(32)) && is_digest(&"a0".repeat(64)));
        assert!(!is_name("default.json"), "the record of a pool's folder is no pool");
        assert!(check_link("bridge", "eth0", "bth-").is_err());
        assert!(check_link("bridge", "bth-0123456789ab", "bth-").is_err(), "16 characters");
    }

    #[test]
    fn a_file_is_in_the_pool_whose_folder_it_is_in() {
        let folders = BTreeMap::from([("fast".to_owned(), PathBuf::from("/mnt/fast"))]);
        let layout = Layout::new("/state").with_pool_places(PoolPlaces::new(folders));
        let of = |path: &str| layout.pool_of(Path::new(path));
        assert_eq!(layout.volumes("fast"), Path::new("/mnt/fast/volumes"));
        assert_eq!(layout.volumes("default"), Path::new("/state/pools/default/volumes"));
        assert_eq!(of("/mnt/fast/volumes/v-1.qcow2").as_deref(), Some("fast"));
        assert_eq!(of("/state/pools/default/snapshots/s-1.qcow2").as_deref(), Some("default"));
        assert_eq!(of("/state/images/abc"), None);
        assert_eq!(of("/mnt/faster/volumes/v-1.qcow2"), None);
    }
}
