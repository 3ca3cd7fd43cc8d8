//! Pools of Ceph for storage pools.

use std::path::PathBuf;
use std::str::FromStr;

use berth_qemu::machine::RbdImage;

use crate::pool_folders::checked_pool_name;

/// A pool of Ceph, and the storage pool whose disks are images in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdPoolMapping {
    pub pool: String,
    pub ceph_pool: String,
    /// The namespace in the pool of Ceph.
    pub namespace: Option<String>,
}

/// How this host reaches Ceph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephAccess {
    /// The configuration file, with the addresses of the monitors. The keyring of the user is beside it.
    pub conf: PathBuf,
    /// The user, without `client.`.
    pub user: String,
}

impl Default for CephAccess {
    fn default() -> Self {
        Self { conf: "/etc/ceph/ceph.conf".into(), user: "berth".to_owned() }
    }
}

impl CephAccess {
    /// The keyring with the key of the user.
    pub(crate) fn keyring(&self) -> PathBuf {
        self.conf.with_file_name(format!("ceph.client.{}.keyring", self.user))
    }
}

impl FromStr for RbdPoolMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pool, place) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not POOL=CEPHPOOL[/NAMESPACE]"))?;
        let pool = checked_pool_name(pool)?;
        let (ceph_pool, namespace) = match place.split_once('/') {
            Some((ceph_pool, namespace)) => (ceph_pool, Some(namespace)),
            None => (place, None),
        };
        for name in std::iter::once(ceph_pool).chain(namespace) {
            if !RbdImage::is_name(name) {
                return Err(format!(
                    "{name:?} is not usable as the name of a pool of Ceph or of a namespace in it: letters, digits, '-', '.' and '_'"
                ));
            }
        }
        Ok(Self {
            pool: pool.to_owned(),
            ceph_pool: ceph_pool.to_owned(),
            namespace: namespace.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_ceph_is_the_name_of_the_pool_with_that_of_the_pool_there() {
        let parse = |text: &str| text.parse::<RbdPoolMapping>();
        let fast = |namespace: Option<&str>| RbdPoolMapping {
            pool: "fast".to_owned(),
            ceph_pool: "vms".to_owned(),
            namespace: namespace.map(str::to_owned),
        };
        assert_eq!(parse("fast=vms"), Ok(fast(None)));
        assert_eq!(parse("fast=vms/site"), Ok(fast(Some("site"))));
        for wrong in ["fast", "=vms", "Fast=vms", "fast=", "fast=vms/", "fast=vms/a/b", "fast=v@s", "fast=-v"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_keyring_of_the_user_is_beside_the_configuration() {
        assert_eq!(CephAccess::default().keyring(), PathBuf::from("/etc/ceph/ceph.client.berth.keyring"));
    }
}
