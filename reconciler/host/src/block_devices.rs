//! Block devices of the host that the administrator offers as disks.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use berth_qemu::machine::is_block_device;

use crate::VolumeOwner;
use crate::shares::{check_name, folder_path};

/// A block device of this host, and the name under which a disk may be it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDeviceMapping {
    pub name: String,
    /// Absolute, in `/dev`.
    pub path: PathBuf,
}

impl FromStr for BlockDeviceMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=PATH"))?;
        check_name(name)?;
        let path = folder_path(path)?;
        let is_plain = path.components().all(|part| part != Component::ParentDir);
        if !is_block_device(&path) || path == Path::new("/dev") || !is_plain {
            return Err(format!("{} is no path in /dev, such as /dev/disk/by-id/…", path.display()));
        }
        Ok(Self { name: name.to_owned(), path })
    }
}

/// A block device that a disk may be, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDeviceFacts {
    pub name: String,
    /// As its administrator has given it.
    pub path: PathBuf,
    /// In bytes; 0 if it cannot be read.
    pub size: u64,
    /// The owner of the volume that it is.
    pub held_by: Option<VolumeOwner>,
    /// Why no machine can have it, for people.
    pub problem: Option<String>,
}

/// A volume that is a block device of the host, instead of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// The pool with its note.
    pub pool: String,
    pub id: String,
    /// The name under which it is offered.
    pub device: String,
    /// The size that it has at least, in bytes. None: any.
    pub size: Option<u64>,
    pub owner: VolumeOwner,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_a_name_with_a_path_in_dev() {
        let parse = |text: &str| text.parse::<BlockDeviceMapping>();
        let nvme = |path: &str| BlockDeviceMapping { name: "nvme".to_owned(), path: path.into() };
        assert_eq!(parse("nvme=/dev/disk/by-id/nvme-a"), Ok(nvme("/dev/disk/by-id/nvme-a")));
        assert_eq!(parse("nvme=/dev/vg0/data=1"), Ok(nvme("/dev/vg0/data=1")));
        for wrong in [
            "nvme",
            "=/dev/sda",
            "Nvme=/dev/sda",
            "nvme=sda",
            "nvme=",
            "nvme=/dev",
            "nvme=/srv/disk.raw",
            "nvme=/dev/shm/disk.raw",
            "nvme=/dev/../etc/passwd",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
