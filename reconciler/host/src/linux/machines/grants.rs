//! Access of QEMU processes to disks: QEMU's user owns the files of its disks while it has them, and reads the images and
//! snapshots below them by its own hard links. The functions block; the methods do not.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use berth_qemu::machine::{Backing, DiskSpec, MachineSpec, Medium, RbdImage, is_block_device};
use berth_qemu::process::RunAs;
use nix::unistd::Uid;

use super::super::block_devices::BlockDevices;
use super::super::files::{self, failed};
use super::super::layout::{Layout, check_name};
use super::super::pool_folders::PoolFolders;
use super::super::rbd;
use super::super::users::Users;
use super::super::volumes;
use super::LinuxMachines;
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

/// The beginning of the identities of instances. The links of other work have other names.
const INSTANCE: &str = "i-";

impl LinuxMachines {
    /// Lets machines open files in the folders of these pools.
    pub(in super::super) fn with_pool_folders(self, pool_folders: PoolFolders) -> Self {
        Self { pool_folders, ..self }
    }

    /// Lets machines open these block devices.
    pub(in super::super) fn with_block_devices(self, devices: BlockDevices) -> Self {
        Self { devices, ..self }
    }

    /// Takes a block device back from the instance's QEMU.
    pub(in super::super) async fn take_back_device(&self, instance: &str, name: &str) -> Result<()> {
        let Some(user) = self.runs_as(instance).await? else { return Ok(()) };
        let (devices, name) = (self.devices.clone(), name.to_owned());
        files::blocking(move || devices.take_back(&user, Some(&name))).await
    }

    /// Makes a disk accessible to the instance's QEMU, which is running or about to start.
    pub(in super::super) async fn grant(&self, instance: &str, spec: &DiskSpec) -> Result<DiskSpec> {
        let user = self.runs_as(instance).await?;
        if RbdImage::is_rbd(&spec.file) {
            self.ensure_network(instance, &spec.id).await?;
        }
        let (layout, pool_folders) = (self.layout.clone(), self.pool_folders.clone());
        let (of, spec, pool) = (instance.to_owned(), spec.clone(), layout.pool_of(&spec.file));
        let pools: BTreeSet<String> = pool.iter().cloned().collect();
        let devices = self.devices.clone();
        let grant = move || {
            if let Some(pool) = pool {
                pool_folders.ensure_there(&pool)?;
            }
            disk((&layout, &devices), &of, &spec, user.as_ref())
        };
        let granted = self.pool_folders.on_pools(&pools, grant).await?;
        if user.is_some() {
            let (layout, of) = (self.layout.clone(), instance.to_owned());
            self.in_each_pool(move |pool| remove_former_links(&layout, &of, pool)).await?;
        }
        Ok(granted)
    }

    /// Checks that the instance's QEMU, if it runs, is in the network of the host: only so does it reach Ceph.
    async fn ensure_network(&self, instance: &str, volume: &str) -> Result<()> {
        let Some(process) = self.process(instance).await? else { return Ok(()) };
        let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
        match network(&process.identity.pid.to_string()) == network("self") {
            true => Ok(()),
            false => Err(SystemError::VolumeBusy {
                id: volume.to_owned(),
                detail: "the machine was started without disks in Ceph, so it is not in the network of the host: it gets the disk at its next \
                         power cycle",
            }),
        }
    }

    /// Lets the instance's QEMU, and no other, read and write a file.
    pub(in super::super) async fn own(&self, instance: &str, file: PathBuf) -> Result<()> {
        let user = self.runs_as(instance).await?;
        files::blocking(move || files::give(&file, user.as_ref())).await
    }

    pub(in super::super) async fn revoke(&self, instance: &str, volume: &str) -> Result<()> {
        check_name("volume", volume)?;
        let user = self.runs_as(instance).await?;
        let (layout, volume) = (self.layout.clone(), volume.to_owned());
        self.in_each_pool(move |pool| revoke(&layout, &volume, user.as_ref(), pool)).await
    }

    /// Makes root the owner of files of a pool that is back, which belonged to machines that are gone.
    pub(in super::super) async fn revoke_departed(&self, pool: &str) -> Result<()> {
        let (layout, users, pool) = (self.layout.clone(), self.users.clone(), pool.to_owned());
        let pools = BTreeSet::from([pool.clone()]);
        self.pool_folders.on_pools(&pools, move || revoke_departed(&layout, &users, &pool)).await
    }

    /// Returns the users that own files in pools. Instances that are started at the same time share a list that began after all of them
    /// asked: it has all files of all disks.
    pub(super) async fn owners(&self) -> Result<BTreeSet<u32>> {
        let (layout, users, pool_folders) =
            (self.layout.clone(), self.users.clone(), self.pool_folders.clone());
        let list = move || users.owners_in(&pool_folders.there(&layout)?);
        self.listed_owners.share(self.pool_folders.on_all(list)).await
    }

    /// Whether the instance has a user of its own, which may own files.
    pub(super) async fn is_known(&self, instance: &str) -> Result<bool> {
        let (users, instance) = (self.users.clone(), instance.to_owned());
        files::blocking(move || Ok(users.kept(&instance)?.is_some())).await
    }

    /// Takes all files in pools back from the user of an instance, and removes its hard links.
    pub(super) async fn take_back(&self, instance: &str) -> Result<()> {
        let (layout, users, instance) = (self.layout.clone(), self.users.clone(), instance.to_owned());
        let bases = layout.bases(&instance);
        let (owners, of) = (users.clone(), instance.clone());
        let take_back = move |pool: &str| {
            revoke_all(&layout, &users, &instance, pool)?;
            // The links keep the bytes of the files allocated.
            super::remove_folder(&layout.snapshot_links(pool, &instance))
        };
        self.in_each_pool(take_back).await?;
        let devices = self.devices.clone();
        files::blocking(move || {
            if let Some(user) = owners.own(&of) {
                devices.take_back(&user, None)?;
            }
            super::remove_folder(&bases)
        })
        .await
    }

    /// Runs work in each pool that is there, one after the other: what is given up goes on in its pool alone, and never in one in which the
    /// next work has begun.
    async fn in_each_pool(&self, work: impl Fn(&str) -> Result<()> + Clone + Send + 'static) -> Result<()> {
        let (layout, pool_folders) = (self.layout.clone(), self.pool_folders.clone());
        let there = move || pool_folders.there(&layout);
        for pool in self.pool_folders.on_all(there).await? {
            let (work, pools) = (work.clone(), BTreeSet::from([pool.clone()]));
            match self.pool_folders.on_pools(&pools, move || work(&pool)).await {
                // As one that was away before.
                Err(error @ SystemError::PoolAway { .. }) => tracing::debug!(%error, "pool left out"),
                done => done?,
            }
        }
        Ok(())
    }

    /// Makes the disks and media of a machine that has no links yet accessible to this user.
    pub(super) async fn lend(&self, machine: MachineSpec, user: Option<RunAs>) -> Result<MachineSpec> {
        let (layout, pool_folders) = (self.layout.clone(), self.pool_folders.clone());
        let pools = self.pools_of(&machine.disks);
        let needed = pools.clone();
        let devices = self.devices.clone();
        let lend = move || {
            // Work that was given up may still take files back in a pool that was away.
            needed.iter().try_for_each(|pool| pool_folders.ensure_there(pool))?;
            let mut machine = machine;
            for of in &mut machine.disks {
                *of = disk((&layout, &devices), &machine.instance, of, user.as_ref())?;
            }
            for of in machine.cdroms.iter_mut().filter_map(|cdrom| cdrom.medium.as_mut()) {
                *of = medium(&layout, &machine.instance, of, user.as_ref())?;
            }
            Ok(machine)
        };
        self.pool_folders.on_pools(&pools, lend).await
    }

    /// The folders in which the QEMU of an instance opens files, and the block devices that it may open.
    pub(super) async fn opened(&self, instance: &str, user: Option<RunAs>) -> Result<Vec<PathBuf>> {
        let (layout, pool_folders, instance) =
            (self.layout.clone(), self.pool_folders.clone(), instance.to_owned());
        let list = move || folders(&layout, &instance, user.as_ref(), &pool_folders.there(&layout)?);
        let mut opened = self.pool_folders.on_all(list).await?;
        // A disk that is one of them may come while the guest runs. Only the user that owns the device file opens it.
        let devices = self.devices.clone();
        opened.extend(files::blocking(move || devices.paths()).await);
        Ok(opened)
    }

    /// The pools with the files of these disks.
    fn pools_of(&self, disks: &[DiskSpec]) -> BTreeSet<String> {
        disks.iter().filter_map(|disk| self.layout.pool_of(&disk.file)).collect()
    }
}

/// Makes a disk accessible to this user, and returns it with the paths that its QEMU has to open. The user of one QEMU at a time owns a file
/// that several write to: the others have it open already.
fn disk(
    (layout, devices): (&Layout, &BlockDevices),
    instance: &str,
    disk: &DiskSpec,
    user: Option<&RunAs>,
) -> Result<DiskSpec> {
    if is_block_device(&disk.file) {
        devices.lend(&disk.id, &disk.file, user)?;
        return Ok(disk.clone());
    }
    let Some(user) = user else { return Ok(disk.clone()) };
    if let Some(image) = RbdImage::of(&disk.file) {
        let conf = rbd::lend(&image.conf, &layout.instance(instance), user)?;
        return Ok(DiskSpec { file: RbdImage { conf, ..image }.file(), ..disk.clone() });
    }
    if disk.read_only {
        files::grant(&disk.file, Some(user))?;
    } else if volumes::is_arriving(&disk.file, &disk.id)? {
        files::share(&disk.file, Some(user))?;
    } else {
        files::give(&disk.file, Some(user))?;
    }
    let backing = disk.backing.as_ref().map(|backing| chain(layout, instance, backing, user)).transpose()?;
    Ok(DiskSpec { backing, ..disk.clone() })
}

fn chain(layout: &Layout, instance: &str, backing: &Backing, user: &RunAs) -> Result<Backing> {
    let below = backing.backing.as_deref().map(|below| chain(layout, instance, below, user)).transpose()?;
    let file = base(layout, instance, &backing.file, user)?;
    Ok(Backing { file, format: backing.format, backing: below.map(Box::new) })
}

/// Makes an image accessible to this user as a medium, and returns it with the path that its QEMU has to open.
pub(super) fn medium(
    layout: &Layout,
    instance: &str,
    medium: &Medium,
    user: Option<&RunAs>,
) -> Result<Medium> {
    let Some(user) = user else { return Ok(medium.clone()) };
    Ok(Medium { file: base(layout, instance, &medium.file, user)?, ..medium.clone() })
}

/// Creates a hard link to an image or a snapshot, in a directory that only this user can traverse. The file is
/// world-readable, but no other QEMU has a path to it. A running QEMU keeps the file when the image in the cache is
/// replaced.
fn base(layout: &Layout, instance: &str, image: &Path, user: &RunAs) -> Result<PathBuf> {
    let folder = links(layout, instance, image);
    files::ensure_folder_for(&folder, Some(user))?;
    let name = folder.join(image.file_name().unwrap_or_default());
    fs::set_permissions(image, fs::Permissions::from_mode(0o444))
        .map_err(failed("change the mode of", image))?;
    let of = |path: &Path| fs::symlink_metadata(path).map(|m| (m.dev(), m.ino()));
    let wanted = of(image).map_err(failed("look at", image))?;
    match of(&name) {
        Ok(found) if found == wanted => return Ok(name),
        Ok(_) => fs::remove_file(&name).map_err(failed("remove", &name))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at", &name)(error)),
    }
    match fs::hard_link(image, &name) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Err(SystemError::Invalid {
            what: "state directory",
            value: layout.root().display().to_string(),
            why: "its folders images and instances have to be on one file system",
        }),
        other => other.map(|()| name.clone()).map_err(failed("link", &name)),
    }
}

/// The directory of the hard link to a file: beside the instance for an image, in the pool for a snapshot.
fn links(layout: &Layout, instance: &str, file: &Path) -> PathBuf {
    let pool = layout.pool_of(file);
    pool.map_or_else(|| layout.bases(instance), |pool| layout.snapshot_links(&pool, instance))
}

/// Removes the hard links of an instance to snapshots that were merged with others: nothing opens them by this name any more, and
/// the links keep their bytes allocated.
fn remove_former_links(layout: &Layout, instance: &str, pool: &str) -> Result<()> {
    let (links, snapshots) = (layout.snapshot_links(pool, instance), layout.snapshots(pool));
    for name in files::names(&links)? {
        let snapshot = snapshots.join(&name);
        if !snapshot.try_exists().map_err(failed("look for", &snapshot))? {
            let link = links.join(&name);
            files::remove_if_there(&link).map_err(failed("remove", &link))?;
        }
    }
    Ok(())
}

/// Directories in which an instance's QEMU opens files, now or when a disk is plugged in.
fn folders(layout: &Layout, instance: &str, user: Option<&RunAs>, pools: &[String]) -> Result<Vec<PathBuf>> {
    let mut folders = vec![layout.instance(instance), layout.pools()];
    for pool in pools {
        if layout.has_own_folder(pool) {
            // A disk may come to the pool while the guest runs. Best effort: one whose file system is full has none for it either.
            let _ = files::ensure_folder(&layout.volumes(pool));
        }
        // A pool may have a folder elsewhere, or be a symbolic link that leads out of the pools directory.
        folders.extend(fs::canonicalize(layout.volumes(pool)).ok());
        if layout.has_own_folder(pool) || layout.pool(pool).is_symlink() {
            let links = layout.snapshot_links(pool, instance);
            files::ensure_folder_for(&links, user)?;
            folders.extend(fs::canonicalize(links).ok());
        }
    }
    Ok(folders)
}

/// Makes root the owner of a volume's file again, if this user owns it.
fn revoke(layout: &Layout, volume: &str, user: Option<&RunAs>, pool: &str) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    // After a snapshot a number follows the volume's id.
    let is_its = |name: &str| {
        (name.ends_with(".qcow2") || name.ends_with(".raw")) && name.split('.').next() == Some(volume)
    };
    take_back_where(layout, pool, |name, owner| is_its(name) && owner == user.uid)
}

/// Makes root the owner of all volume files again that the user of an instance owns after its QEMU has ended.
fn revoke_all(layout: &Layout, users: &Users, instance: &str, pool: &str) -> Result<()> {
    match users.own(instance) {
        Some(user) => take_back_where(layout, pool, |_, owner| owner == user.uid),
        None => Ok(()),
    }
}

/// Makes root the owner of the files of a pool whose users belonged to instances that are gone, and removes their hard links: the pool was
/// away when they ended.
pub(in super::super) fn revoke_departed(layout: &Layout, users: &Users, pool: &str) -> Result<()> {
    let mut owned = Vec::new();
    for folder in [layout.volumes(pool), layout.trash(pool)] {
        for name in files::names(&folder)? {
            let path = folder.join(&name);
            owned.extend(owner_of(&path).filter(|uid| users.is_of_range(*uid)).map(|uid| (path, uid)));
        }
    }
    // Afterwards: an instance has its user before it gets a file.
    let assigned = users.assigned()?;
    for (path, uid) in owned.into_iter().filter(|(_, uid)| !assigned.contains(uid)) {
        // A machine may have been started with the file meanwhile.
        if owner_of(&path) == Some(uid) {
            files::revoke(&path)?;
        }
    }
    let readers = layout.snapshot_readers(pool);
    for name in files::names(&readers)?.iter().filter(|name| name.starts_with(INSTANCE)) {
        if !layout.instance(name).exists() {
            super::remove_folder(&readers.join(name))?;
        }
    }
    Ok(())
}

/// The user that owns a file. None: it is gone, or no file.
fn owner_of(path: &Path) -> Option<u32> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|about| about.uid())
}

fn take_back_where(layout: &Layout, pool: &str, wanted: impl Fn(&str, u32) -> bool) -> Result<()> {
    for folder in [layout.volumes(pool), layout.trash(pool)] {
        for name in files::names(&folder)? {
            let path = folder.join(&name);
            // A file that has been removed needs no owner.
            if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && wanted(&name, m.uid())) {
                files::revoke(&path)?;
            }
        }
    }
    Ok(())
}

/// The user that a process runs as. None: the agent's own user, or the process has ended.
pub(super) fn owner(pid: i32) -> Result<Option<RunAs>> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    match fs::metadata(&process) {
        Ok(metadata) if metadata.uid() == Uid::effective().as_raw() => Ok(None),
        Ok(metadata) => Ok(Some(RunAs { uid: metadata.uid(), gid: metadata.gid() })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("look at", &process)(error)),
    }
}
