//! The users that QEMU processes run as: a user and group for each instance, which nothing else on this machine has.
//!
//! ```text
//!  instances/<id>/user.json      the user of the instance; kept as long as the instance
//!  /run/berth/users/<uid>        the path of that record: keeps several berths on one machine apart
//! ```
//!
//! A user is assigned if no account, no range of subordinate users, no process, no file in the pools and no other
//! record has it. Instances started by a version of berth that ran all QEMU processes as one user have no record, and
//! keep that user until their next start.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_qemu::process::RunAs;
use nix::unistd::Uid;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::files::{self, failed};
use super::layout::{Layout, is_name};
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

/// Files that list ids in use: accounts, and the ranges of subordinate ids.
const ACCOUNTS: [&str; 2] = ["/etc/passwd", "/etc/group"];
const SUBORDINATE: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// The registry of assigned users, shared by all berths of one machine. Only root has access; like the machine's
/// processes it does not survive a reboot.
const REGISTRY: &str = "/run/berth/users";

/// A range of user ids, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    first: u32,
    last: u32,
}

impl Default for UidRange {
    /// Above the ids that distributions, systemd and containers assign, and within a signed 32-bit number.
    fn default() -> Self {
        Self { first: 2_100_000_000, last: 2_116_777_215 }
    }
}

impl std::str::FromStr for UidRange {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let ends = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (first, last) = ends.ok_or_else(|| format!("{text:?} is not FIRST-LAST, two user ids"))?;
        if first < 1000 || last == u32::MAX {
            return Err("user ids of machines are between 1000 and 4294967294".to_owned());
        }
        if last < first || last - first < 255 {
            return Err("a range has 256 user ids at least: each machine has one of its own".to_owned());
        }
        Ok(Self { first, last })
    }
}

impl UidRange {
    /// An arbitrary user of the range.
    pub(super) fn example(self) -> RunAs {
        RunAs { uid: self.first, gid: self.first }
    }

    fn size(self) -> u32 {
        self.last - self.first + 1
    }

    /// Iterates over the whole range, starting at an offset.
    fn from(self, start: u32) -> impl Iterator<Item = u32> {
        (0..self.size()).map(move |n| self.first + (start % self.size() + n) % self.size())
    }
}

/// The users of one state directory's instances. Every method blocks.
#[derive(Clone, Debug)]
pub(super) struct Users {
    layout: Layout,
    range: Option<UidRange>,
    /// The user of all QEMU processes before each instance had its own.
    shared: Option<RunAs>,
    registry: PathBuf,
    /// Locked while a user is chosen.
    choice: Arc<Mutex<()>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Record {
    uid: u32,
}

impl Record {
    fn run_as(self) -> RunAs {
        RunAs { uid: self.uid, gid: self.uid }
    }
}

impl Users {
    /// Without a range QEMU runs as the agent's own user.
    pub(super) fn new(layout: Layout, range: Option<UidRange>, shared: Option<RunAs>) -> Self {
        Self { layout, range, shared, registry: PathBuf::from(REGISTRY), choice: Arc::default() }
    }

    #[cfg(test)]
    pub(super) fn with_registry(mut self, registry: &Path) -> Self {
        self.registry = registry.to_owned();
        self
    }

    /// The user that the instance's QEMU runs as, if there is one. None: the agent's own user.
    pub(super) fn of(&self, instance: &str) -> Option<RunAs> {
        self.range?;
        self.record(instance).map(Record::run_as).or(self.shared)
    }

    /// The instance's exclusive user, if it has one.
    pub(super) fn own(&self, instance: &str) -> Option<RunAs> {
        self.range?;
        self.record(instance).map(Record::run_as)
    }

    /// Whether a process of this user can belong to the instance.
    pub(super) fn may_be(&self, instance: &str, uid: u32) -> bool {
        // A command line can contain any path.
        if !is_name(instance) {
            return false;
        }
        match self.of(instance) {
            Some(user) => user.uid == uid,
            None => Uid::effective().as_raw() == uid,
        }
    }

    fn record(&self, instance: &str) -> Option<Record> {
        // A damaged record counts as none: the next start creates another.
        files::read_json::<Record>(&self.layout.user(instance)).ok()??.ok()
    }

    /// The users of the range that instances have.
    pub(super) fn assigned(&self) -> Result<BTreeSet<u32>> {
        let instances = files::names(&self.layout.instances())?;
        let records = instances.iter().filter(|n| is_name(n)).filter_map(|instance| self.record(instance));
        Ok(records.map(|record| record.uid).collect())
    }

    /// Whether a user may be, or have been, that of an instance alone.
    pub(super) fn is_of_range(&self, uid: u32) -> bool {
        self.range.is_some_and(|range| (range.first..=range.last).contains(&uid))
    }

    /// Returns the exclusive user that the instance has and keeps.
    pub(super) fn kept(&self, instance: &str) -> Result<Option<RunAs>> {
        if self.range.is_none() {
            return Ok(None);
        }
        let _one_at_a_time = self.choice.lock().unwrap_or_else(PoisonError::into_inner);
        let _registry = self.lock_registry()?;
        self.claimed(instance)
    }

    /// Returns the recorded user of the instance, if no other record has it. The registry must be locked.
    fn claimed(&self, instance: &str) -> Result<Option<RunAs>> {
        let Some(record) = self.record(instance) else { return Ok(None) };
        Ok(self.claim(record.uid, &self.layout.user(instance))?.then(|| record.run_as()))
    }

    /// Returns the user for the instance's QEMU, assigned if necessary. None: the agent's own user.
    ///
    /// *Assumptions:* the instance's QEMU is not running.
    ///
    /// *Guarantees:* the record is on disk when this returns.
    ///
    /// `owners`: of files in pools, which are listed before: a pool that does not answer would hold up all instances.
    pub(super) fn assign(&self, instance: &str, owners: &BTreeSet<u32>) -> Result<Option<RunAs>> {
        let Some(range) = self.range else { return Ok(None) };
        let user = self.choose(range, instance, owners)?;
        // Without the locks: the others that are started now do not wait for the disk one after the other.
        files::sync(&self.layout.user(instance))?;
        Ok(Some(user))
    }

    fn choose(&self, range: UidRange, instance: &str, owners: &BTreeSet<u32>) -> Result<RunAs> {
        let _one_at_a_time = self.choice.lock().unwrap_or_else(PoisonError::into_inner);
        let _registry = self.lock_registry()?;
        if let Some(user) = self.claimed(instance)? {
            return Ok(user);
        }
        let path = self.layout.user(instance);
        let taken = self.taken()?;
        for uid in range.from(rand::rng().random_range(0..range.size())) {
            if !taken.has(uid) && !owners.contains(&uid) && self.claim(uid, &path)? {
                let record = Record { uid };
                // Synced by the caller. A damaged one counts as none.
                files::write_json_until_boot(&path, &record, 0o600)?;
                return Ok(record.run_as());
            }
        }
        Err(SystemError::Invalid {
            what: "range of users for QEMU",
            value: format!("{}-{}", range.first, range.last),
            why: "all of them are taken: give a larger range (--qemu-uid-range)",
        })
    }

    /// Releases the user of a removed instance.
    pub(super) fn forget(&self, instance: &str) -> Result<()> {
        if self.range.is_none() {
            return Ok(());
        }
        let Some(record) = self.record(instance) else { return Ok(()) };
        let _registry = self.lock_registry()?;
        let claim = self.registry.join(record.uid.to_string());
        match fs::read(&claim) {
            Ok(owner) if owner == bytes(&self.layout.user(instance)) => {
                files::remove_if_there(&claim).map_err(failed("remove", &claim))
            }
            _ => Ok(()),
        }
    }

    fn lock_registry(&self) -> Result<File> {
        let make = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.registry)?;
            let lock = self.registry.join("lock");
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
            file.lock()?;
            Ok(file)
        };
        make().map_err(failed("lock", &self.registry))
    }

    /// Claims the user for this record in the registry that all berths of this machine share. False: another record has
    /// it.
    fn claim(&self, uid: u32, record: &Path) -> Result<bool> {
        let claim = self.registry.join(uid.to_string());
        match fs::read(&claim) {
            Ok(owner) if owner == bytes(record) => return Ok(true),
            Ok(owner) if is_kept(&owner, uid) => return Ok(false),
            // Its instance or its state directory no longer exists.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &claim)(error)),
        }
        let write = || -> io::Result<()> {
            files::remove_if_there(&claim)?;
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&claim)?
                .write_all(&bytes(record))
        };
        write().map_err(failed("write", &claim))?;
        Ok(true)
    }

    fn taken(&self) -> Result<Taken> {
        let mut taken = Taken { single: processes(), ranges: Vec::new() };
        for file in ACCOUNTS {
            taken.single.extend(
                read_or_empty(file)?.lines().filter_map(|l| l.split(':').nth(2)?.parse::<u32>().ok()),
            );
        }
        for file in SUBORDINATE {
            taken.ranges.extend(read_or_empty(file)?.lines().filter_map(range_of));
        }
        for instance in files::names(&self.layout.instances())?.iter().filter(|n| is_name(n)) {
            taken.single.extend(self.record(instance).map(|record| record.uid));
        }
        Ok(taken)
    }

    /// Returns the users that own files of volumes in these pools.
    pub(super) fn owners_in(&self, pools: &[String]) -> Result<BTreeSet<u32>> {
        let mut owners = BTreeSet::new();
        if self.range.is_none() {
            return Ok(owners);
        }
        for pool in pools {
            for folder in [self.layout.volumes(pool), self.layout.trash(pool)] {
                for name in files::names(&folder)? {
                    // The file may have been removed since it was listed.
                    owners.extend(fs::symlink_metadata(folder.join(name)).ok().map(|m| m.uid()));
                }
            }
        }
        Ok(owners)
    }
}

/// Users that must not be assigned.
#[derive(Debug)]
struct Taken {
    single: BTreeSet<u32>,
    /// First id and count.
    ranges: Vec<(u32, u32)>,
}

impl Taken {
    fn has(&self, uid: u32) -> bool {
        let within = |(first, count): &(u32, u32)| uid.checked_sub(*first).is_some_and(|n| n < *count);
        self.single.contains(&uid) || self.ranges.iter().any(within)
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

/// Whether the record at this path still has this user.
fn is_kept(path: &[u8], uid: u32) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    matches!(files::read_json::<Record>(path), Ok(Some(Ok(record))) if record.uid == uid)
}

/// Returns the owners of all processes.
fn processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = entries.filter(|e| e.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    numbered.filter_map(|entry| Some(entry.metadata().ok()?.uid())).collect()
}

fn read_or_empty(path: &str) -> Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed("read", Path::new(path))(error)),
    }
}

/// `name:first:count`
fn range_of(line: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests;
