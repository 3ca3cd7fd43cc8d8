//! Block devices of this host that volumes are: which of them can be opened now, and by whom. All functions block.
//!
//! ```text
//!  lend:       (offered, not used by the host) ─▶ QEMU's user owns the device file
//!  take back:  root owns the device file
//! ```
//!
//! Nothing here writes to a device. The kernel says whether the host uses one itself: it is then opened exclusively, as a mounted file
//! system, swap, a RAID or a volume group opens it or one of its partitions.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::machine::is_block_device;
use berth_qemu::process::RunAs;
use nix::sys::stat::{major, minor};

use super::files::{self, failed, overlap};
use crate::{BlockDeviceFacts, BlockDeviceMapping, SystemError, VolumeOwner};

type Result<T> = std::result::Result<T, SystemError>;

const NOT_OFFERED: &str = "this host does not offer it (--block-device)";

/// A block device as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its device file, without symbolic links; as given if there is none.
    pub(super) path: PathBuf,
    /// In bytes; 0 if it cannot be read.
    pub(super) size: u64,
    /// Why it is not opened.
    pub(super) problem: Option<String>,
}

/// The block devices that volumes may be.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockDevices {
    mappings: Arc<Vec<BlockDeviceMapping>>,
    /// Held while a device is opened exclusively: two looks at once would each find it in use.
    looking: Arc<Mutex<()>>,
    /// Held while it is decided which volume a device is.
    taking: Arc<Mutex<()>>,
    /// The names of the devices that volumes are, by the identity of the volume, as far as they were looked at.
    volumes: Arc<Mutex<BTreeMap<String, String>>>,
}

impl BlockDevices {
    pub(super) fn new(mappings: Vec<BlockDeviceMapping>) -> Self {
        Self { mappings: Arc::new(mappings), ..Self::default() }
    }

    /// Returns the devices of all mappings, with what stands in their way. `held`: the owners of the volumes that devices are, by name.
    pub(super) fn facts(&self, held: &BTreeMap<String, VolumeOwner>) -> Vec<BlockDeviceFacts> {
        let fact = |mapping: &BlockDeviceMapping| {
            let Found { size, problem, .. } = self.look(&mapping.name);
            let (name, path) = (mapping.name.clone(), mapping.path.clone());
            BlockDeviceFacts { held_by: held.get(&name).cloned(), name, path, size, problem }
        };
        self.mappings.iter().map(fact).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Lets no other volume get a device meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the device that a volume is: only a disk of this volume is lent the device.
    pub(super) fn look_for(&self, volume: &str, name: &str) -> Found {
        self.volumes().insert(volume.to_owned(), name.to_owned());
        self.look(name)
    }

    /// Lends the device of a volume that is none any more to no machine.
    pub(super) fn forget(&self, volume: &str) {
        self.volumes().remove(volume);
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the device of this name.
    pub(super) fn look(&self, name: &str) -> Found {
        let mut named = self.mappings.iter().filter(|mapping| mapping.name == name);
        let Some(mapping) = named.next() else {
            let path = Path::new("/dev").join(name);
            return Found { path, size: 0, problem: Some(NOT_OFFERED.to_owned()) };
        };
        let given = &mapping.path;
        let real = given.canonicalize().ok().filter(|path| is_block_device(path));
        let path = real.unwrap_or_else(|| given.clone());
        let looked = match named.next() {
            Some(_) => Err("two devices have this name".to_owned()),
            None => self.examine(mapping),
        };
        let (size, problem) = match looked {
            Ok((size, problem)) => (size, problem),
            Err(problem) => (0, Some(problem)),
        };
        Found { path, size, problem }
    }

    /// Returns the size of a device, and why it is not opened. The error: it has no size either.
    fn examine(&self, mapping: &BlockDeviceMapping) -> std::result::Result<(u64, Option<String>), String> {
        let given = mapping.path.display();
        let path = mapping.path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("this host has no device {given} now"),
            _ => format!("{given} cannot be used: {error}"),
        })?;
        if !is_block_device(&path) {
            return Err(format!("{given} leads out of /dev"));
        }
        let about = fs::metadata(&path).map_err(|error| format!("{given} cannot be used: {error}"))?;
        if !about.file_type().is_block_device() {
            return Err(format!("{given} is no block device"));
        }
        let own = sysfs(about.rdev());
        if let Some(own) = &own
            && is_read_only(own)
        {
            return Err(format!("{given} is read-only"));
        }
        let mut others = self.mappings.iter().filter(|other| other.name != mapping.name);
        let overlapping = others.find(|other| {
            let other = fs::metadata(&other.path).ok().filter(|about| about.file_type().is_block_device());
            let other = other.and_then(|about| sysfs(about.rdev()));
            own.as_ref().zip(other).is_some_and(|(own, other)| overlap(own, &other))
        });
        if let Some(other) = overlapping {
            return Err(format!(
                "{given} is the device of {}, or a part of it: offer it under one name",
                other.name
            ));
        }
        let size = size_of(&path).map_err(|error| format!("{given} cannot be read: {error}"))?;
        if size == 0 {
            return Err(format!("{given} is empty: it has no medium"));
        }
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match open(&path, libc::O_EXCL) {
            Ok(_) => (size, None),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let problem = format!(
                    "the host uses {given} itself: it, or one of its partitions, is mounted, or is swap or a part of a RAID, of a volume \
                     group or of another device"
                );
                (size, Some(problem))
            }
            Err(error) => (size, Some(format!("{given} cannot be opened: {error}"))),
        })
    }

    /// Makes the device of a volume accessible to the user of one QEMU, which opens this device file. None: QEMU runs as the agent's user.
    ///
    /// *Errors*: [`SystemError::BlockDevice`] if it is not offered (any more), the host uses it, or its device file is that of another device
    /// now: the kernel gives the name of one that is gone to the next one.
    pub(super) fn lend(&self, volume: &str, file: &Path, user: Option<&RunAs>) -> Result<()> {
        let name = self.volumes().get(volume).cloned();
        let Some(name) = name else {
            let (name, detail) = (file.display().to_string(), "it is not that of this volume".to_owned());
            return Err(SystemError::BlockDevice { name, detail });
        };
        let Found { path, problem, .. } = self.look(&name);
        let moved =
            || (path != file).then(|| format!("it is {} now, and was {}", path.display(), file.display()));
        if let Some(detail) = problem.or_else(moved) {
            return Err(SystemError::BlockDevice { name, detail });
        }
        let Some(user) = user else { return Ok(()) };
        // The group and the mode stay as udev has set them: the owner reads and writes.
        chown(file, Some(user.uid), None).map_err(failed("change the owner of", file))
    }

    /// Makes root the owner of the device files that this user owns: of the device with this name, or of all devices, also of those that are
    /// not offered any more, or whose names lead to others now.
    pub(super) fn take_back(&self, user: &RunAs, name: Option<&str>) -> Result<()> {
        let paths: Vec<PathBuf> = match name {
            None => self.paths().into_iter().chain(device_files()).collect(),
            Some(name) => {
                let named = self.mappings.iter().filter(|mapping| mapping.name == name);
                // One that is gone needs no owner.
                named.filter_map(|mapping| mapping.path.canonicalize().ok()).collect()
            }
        };
        let is_its = |about: &fs::Metadata| about.file_type().is_block_device() && about.uid() == user.uid;
        for path in paths {
            if fs::symlink_metadata(&path).is_ok_and(|about| is_its(&about)) {
                chown(&path, Some(0), None).map_err(failed("change the owner of", &path))?;
            }
        }
        Ok(())
    }

    /// The device files of the devices that are there.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let real = self.mappings.iter().filter_map(|mapping| mapping.path.canonicalize().ok());
        real.filter(|path| is_block_device(path)).collect()
    }
}

/// The device files of all block devices of the host.
fn device_files() -> Vec<PathBuf> {
    let names = files::names(Path::new("/sys/class/block")).unwrap_or_default();
    // The kernel has `!` for `/` there.
    names.into_iter().map(|name| Path::new("/dev").join(name.replace('!', "/"))).collect()
}

/// The folder of a device in sysfs: that of a partition is in that of its disk.
fn sysfs(device: u64) -> Option<PathBuf> {
    let name = format!("{}:{}", major(device), minor(device));
    Path::new("/sys/dev/block").join(name).canonicalize().ok()
}

fn is_read_only(sysfs: &Path) -> bool {
    fs::read_to_string(sysfs.join("ro")).is_ok_and(|text| text.trim() == "1")
}

/// Opens a device for reading, which changes nothing: udev reacts to the end of a use for writing.
fn open(path: &Path, flags: libc::c_int) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags | libc::O_NONBLOCK).open(path)
}

fn size_of(path: &Path) -> io::Result<u64> {
    open(path, 0)?.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn offering(all: &[(&str, &str)]) -> BlockDevices {
        let mapping =
            |(name, path): &(&str, &str)| BlockDeviceMapping { name: (*name).to_owned(), path: path.into() };
        BlockDevices::new(all.iter().map(mapping).collect())
    }

    #[test]
    fn a_device_that_no_machine_can_have_says_why() {
        let devices = offering(&[
            ("gone", "/dev/berth-test-gone"),
            ("null", "/dev/null"),
            ("twice", "/dev/null"),
            ("twice", "/dev/zero"),
        ]);
        let problem = |name: &str| devices.look(name).problem.unwrap_or_default();
        for (name, why) in [
            ("gone", "has no device /dev/berth-test-gone"),
            ("null", "is no block device"),
            ("twice", "two devices have this name"),
            ("other", "does not offer it"),
        ] {
            assert!(problem(name).contains(why), "{name}: {}", problem(name));
        }
        let owner = VolumeOwner {
            namespace: "ns".to_owned(),
            name: "d".to_owned(),
            uid: None,
            image: None,
            source: None,
        };
        let held = BTreeMap::from([("null".to_owned(), owner.clone())]);
        let facts = devices.facts(&held);
        assert_eq!(facts.len(), 4);
        assert_eq!((facts[1].held_by.as_ref(), facts[1].size), (Some(&owner), 0));
        assert!(facts[0].held_by.is_none() && facts[0].problem.is_some());
    }

    #[test]
    fn a_device_that_is_not_offered_is_lent_to_no_machine() {
        let devices = offering(&[("null", "/dev/null")]);
        devices.look_for("v-null", "null");
        devices.look_for("v-other", "other");
        for (volume, file, why) in [
            ("v-other", "/dev/zero", "does not offer it"),
            ("v-null", "/dev/null", "is no block device"),
            ("v-unseen", "/dev/null", "not that of this volume"),
        ] {
            let error = devices.lend(volume, Path::new(file), None).expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(devices.paths(), [PathBuf::from("/dev/null")]);
        devices.take_back(&RunAs { uid: 60_000, gid: 60_000 }, None).expect("there is nothing to take back");
    }

    /// A loop device on a file, which is given back.
    struct Loop(PathBuf);

    impl Loop {
        /// None: this machine has none to give.
        fn new(file: &Path) -> Option<Self> {
            let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
            let path = String::from_utf8(made.stdout).ok().filter(|_| made.status.success())?;
            Some(Self(PathBuf::from(path.trim())))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        }
    }

    #[test]
    fn a_device_is_lent_unless_the_host_uses_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("disk");
        File::create(&file).and_then(|file| file.set_len(8 << 20)).expect("made");
        let Some(device) = Loop::new(&file) else {
            println!("skipped: this machine has no loop devices to give");
            return;
        };
        let path = device.0.to_str().expect("a path");
        let devices = offering(&[("data", path)]);
        let found = Found { path: device.0.clone(), size: 8 << 20, problem: None };
        assert_eq!(devices.look("data"), found);
        let owner = || fs::metadata(&device.0).expect("it is there").uid();
        let user = RunAs { uid: 60_000, gid: 60_000 };
        assert_eq!(devices.look_for("v-data", "data"), found);
        devices.lend("v-data", &device.0, Some(&user)).expect("lent");
        assert_eq!(owner(), 60_000);
        devices.take_back(&user, Some("other")).expect("another one");
        assert_eq!(owner(), 60_000);
        offering(&[]).take_back(&user, None).expect("taken back, although it is not offered any more");
        assert_eq!(owner(), 0);

        // As if it had become the device of another name since its path was read.
        devices.look_for("v-other", "other");
        let was = Path::new("/dev/berth-test-gone");
        for (volume, file) in [("v-other", device.0.as_path()), ("v-data", was)] {
            assert!(devices.lend(volume, file, Some(&user)).is_err() && owner() == 0, "{volume}");
        }
        devices.forget("v-data");
        assert!(devices.lend("v-data", &device.0, Some(&user)).is_err() && owner() == 0);
        devices.look_for("v-data", "data");

        let exclusive = open(&device.0, libc::O_EXCL).expect("as a mount opens it");
        let used = devices.look("data");
        assert!(used.size == 8 << 20 && used.problem.is_some_and(|why| why.contains("the host uses")));
        assert!(devices.lend("v-data", &device.0, Some(&user)).is_err() && owner() == 0);
        drop(exclusive);
        assert_eq!(devices.look("data"), found);

        let both = offering(&[("data", path), ("again", path)]);
        let problem = both.look("data").problem.unwrap_or_default();
        assert!(problem.contains("the device of again"), "{problem}");
    }
}
