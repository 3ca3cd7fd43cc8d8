//! Images of Ceph (RBD) as disks: in the place of the path of a file, in the form of QEMU's file names.
//!
//! ```text
//!  rbd:POOL[/NAMESPACE]/IMAGE:id=USER:conf=FILE
//! ```
//!
//! No key is in it: the keyring is a file that the configuration file names.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Cache, MachineSpec};

/// An image, and how a program reaches its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdImage {
    /// The pool of Ceph.
    pub pool: String,
    pub namespace: Option<String>,
    pub image: String,
    /// The user of Ceph, without `client.`.
    pub user: String,
    /// Absolute; the configuration file of Ceph.
    pub conf: PathBuf,
}

impl RbdImage {
    /// Whether this path of a disk is an image of Ceph.
    pub fn is_rbd(file: &Path) -> bool {
        Self::of(file).is_some()
    }

    /// Reads an image that [`RbdImage::file`] has written. None: the path is that of a file, or one with other characters.
    pub fn of(file: &Path) -> Option<Self> {
        let rest = file.to_str()?.strip_prefix("rbd:")?;
        let (name, rest) = rest.split_once(":id=")?;
        let (user, conf) = rest.split_once(":conf=")?;
        let parts: Vec<&str> = name.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return None,
        };
        let names = [Some(pool), namespace, Some(image), Some(user)];
        let are_names = names.into_iter().flatten().all(Self::is_name);
        (are_names && Path::new(conf).is_absolute()).then(|| Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            user: user.to_owned(),
            conf: PathBuf::from(conf),
        })
    }

    /// Whether a pool, a namespace, an image or a user can have this name: those that need no escaping.
    pub fn is_name(text: &str) -> bool {
        (1..=200).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    }

    /// The image in the place of a path.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        let (name, user, conf) = (self.name(), &self.user, self.conf.display());
        PathBuf::from(format!("rbd:{name}:id={user}:conf={conf}"))
    }

    /// The image as the program `rbd` names it.
    #[must_use]
    pub fn name(&self) -> String {
        let namespace = self.namespace.iter().map(|namespace| format!("{namespace}/"));
        format!("{}/{}{}", self.pool, namespace.collect::<String>(), self.image)
    }

    /// Builds the options of QEMU's block node.
    #[must_use]
    pub fn node(&self) -> Value {
        let mut node = json!({
            "driver": "rbd",
            "pool": self.pool,
            "image": self.image,
            "user": self.user,
            "conf": self.conf.to_string_lossy(),
        });
        if let Some(namespace) = &self.namespace {
            node["namespace"] = json!(namespace);
        }
        node
    }

    /// Reads the image from the options of QEMU's block node.
    pub(crate) fn of_node(node: &Value) -> Option<Self> {
        let text = |name: &str| node.get(name).and_then(Value::as_str).map(str::to_owned);
        text("driver").filter(|driver| driver == "rbd")?;
        Some(Self {
            pool: text("pool")?,
            namespace: text("namespace").filter(|namespace| !namespace.is_empty()),
            image: text("image")?,
            user: text("user")?,
            conf: PathBuf::from(text("conf")?),
        })
    }
}

impl MachineSpec {
    /// Whether its QEMU talks to servers by itself.
    pub(crate) fn needs_network(&self) -> bool {
        self.disks.iter().any(|disk| RbdImage::is_rbd(&disk.file))
    }
}

/// Builds the node with the image of a disk. The cache is that of librbd, which a flush of the guest empties; the image's lock, which only
/// one client has at a time, is taken at the first write.
pub(super) fn file_node(image: &RbdImage, read_only: bool, mode: Cache, discard: &str) -> Value {
    let mut node = image.node();
    node["read-only"] = json!(read_only);
    node["cache"] = json!({"direct": mode.is_direct(), "no-flush": false});
    node["discard"] = json!(discard);
    node
}

#[cfg(test)]
mod tests {
    use super::super::{Backing, Bus, DiskSpec, Format, blockdevs, example};
    use super::*;

    fn image(namespace: Option<&str>) -> RbdImage {
        RbdImage {
            pool: "vms".to_owned(),
            namespace: namespace.map(str::to_owned),
            image: "berth-v-1".to_owned(),
            user: "berth".to_owned(),
            conf: "/state/instances/i-1/ceph-fast.conf".into(),
        }
    }

    #[test]
    fn an_image_is_written_in_the_place_of_a_path_and_read_again() {
        for (namespace, text) in [
            (None, "rbd:vms/berth-v-1:id=berth:conf=/state/instances/i-1/ceph-fast.conf"),
            (Some("ns"), "rbd:vms/ns/berth-v-1:id=berth:conf=/state/instances/i-1/ceph-fast.conf"),
        ] {
            let image = image(namespace);
            assert_eq!(image.file(), Path::new(text));
            assert_eq!(RbdImage::of(&image.file()), Some(image.clone()));
            assert_eq!(RbdImage::of_node(&image.node()), Some(image));
        }
        for other in [
            "/pool/v-1.qcow2",
            "rbd:vms/a",
            "rbd:v@s/a:id=b:conf=/c",
            "rbd:vms/a:id=b:conf=c",
            "rbd:a:id=b:conf=/c",
        ] {
            assert!(!RbdImage::is_rbd(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_disk_in_ceph_is_a_raw_node_on_its_image_and_needs_the_network() {
        let mut spec = example(Path::new("/run")).machine;
        assert!(!spec.needs_network());
        let disk = DiskSpec {
            id: "v-1".to_owned(),
            file: image(None).file(),
            format: Format::Raw,
            backing: None,
            serial: "v-1".to_owned(),
            wwn: None,
            boot: false,
            read_only: false,
            target: None,
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        };
        assert!(disk.validate().is_ok());
        assert!(DiskSpec { format: Format::Qcow2, ..disk.clone() }.validate().is_err());
        let nodes = blockdevs(&disk);
        let top = &nodes[0];
        assert_eq!((nodes.len(), &top["driver"], &top["node-name"]), (1, &json!("raw"), &json!("v-1")));
        assert_eq!((&top["discard"], &top["detect-zeroes"]), (&json!("unmap"), &json!("unmap")));
        assert_eq!(RbdImage::of_node(&top["file"]), Some(image(None)));
        assert_eq!(top["file"].get("locking"), None, "the cluster has the locks");
        spec.disks.push(disk);
        assert!(spec.needs_network());
    }

    #[test]
    fn an_encrypted_disk_in_ceph_is_a_luks_node_that_names_its_key_and_a_file_is_none() {
        let disk = DiskSpec {
            id: "v-1".to_owned(),
            file: image(None).file(),
            format: Format::Luks,
            backing: None,
            serial: "v-1".to_owned(),
            wwn: None,
            boot: false,
            read_only: false,
            target: None,
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        };
        assert!(disk.validate().is_ok() && disk.format.is_encrypted());
        let nodes = blockdevs(&disk);
        let top = &nodes[0];
        assert_eq!((nodes.len(), &top["driver"], &top["node-name"]), (1, &json!("luks"), &json!("v-1")));
        assert_eq!(top["key-secret"], json!("key-v-1"));
        assert_eq!((top.get("encrypt"), top.get("backing")), (None, None), "they are of qcow2");
        assert_eq!(top.get("detect-zeroes"), None, "encrypted zeros are data");
        assert_eq!(RbdImage::of_node(&top["file"]), Some(image(None)));
        assert_eq!(top["file"].get("encrypt"), None, "librbd has no key");
        let in_file = DiskSpec { file: "/pool/v-1.raw".into(), ..disk.clone() };
        assert!(in_file.validate().is_err());
        let backing = Some(Backing { file: "/b".into(), format: Format::Raw, backing: None });
        assert!(DiskSpec { backing, ..disk.clone() }.validate().is_err());
        assert!(DiskSpec { shared: true, ..disk }.validate().is_err());
    }

    #[test]
    fn the_node_of_an_image_has_no_key() {
        let expected = json!({
            "driver": "rbd",
            "pool": "vms",
            "namespace": "ns",
            "image": "berth-v-1",
            "user": "berth",
            "conf": "/state/instances/i-1/ceph-fast.conf",
            "read-only": false,
            "cache": {"direct": false, "no-flush": false},
            "discard": "unmap",
        });
        assert_eq!(file_node(&image(Some("ns")), false, Cache::Writeback, "unmap"), expected);
    }
}
