//! Copies of the firmware state of instances in a pool of Ceph. Each is a small image, which is written once:
//!
//! ```text
//!    berth-firmware-<instance>.<VM>.<epoch>.<number>            <VM>: a digest of its uid
//!
//!    write:   list ─▶ import with the next number ─▶ remove those before it
//!    read:    list ─▶ the last one that is whole
//! ```
//!
//! A crash leaves the former copy, and perhaps this one: an import that was interrupted is no whole copy, by its checksum, and the next one
//! removes it.
//!
//! A former host may be cut off from the control plane and still reach Ceph. The cluster refuses the QEMUs that had its disks, but not a
//! program that its agent starts anew. Therefore the copies of different hosts are different images, and the latest epoch counts: the next host
//! writes what it has taken over under its own epoch before it records that. A copy of an earlier epoch is refused from then on, and one that
//! was on its way replaces nothing and is not read.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::super::layout::check_name;
use super::client::{Client, PATIENCE, is_absent};
use super::{RbdPool, Result, replies, succeeded};
use crate::{FirmwareCopy, SystemError};

/// How long the data of a copy may take.
const DATA: Duration = PATIENCE.saturating_mul(4);
/// How much of the digest of a uid is in a name, in bytes.
const TAG: usize = 6;
/// How often the list is read while a former host replaces the copies in it.
const LISTS: usize = 5;
/// No lock, which a program that was killed would leave.
const FEATURES: &str = "layering";

/// The place of a copy among those of its VM: the greatest is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    epoch: i64,
    number: u64,
}

impl RbdPool {
    /// Writes a copy, which takes the place of those of this and earlier epochs.
    ///
    /// *Errors*: [`SystemError::Invalid`] if there is one of a later epoch.
    pub(in super::super) async fn write_firmware_copy(
        &self,
        instance: &str,
        copy: &FirmwareCopy,
    ) -> Result<()> {
        check_name("instance", instance)?;
        self.ensure_there().await?;
        let before = self.firmware_copies(instance, &copy.uid).await?;
        let place = next(&before, copy.epoch).ok_or_else(|| SystemError::Invalid {
            what: "firmware state of the instance",
            value: instance.to_owned(),
            why: "a host to which the VM was bound later has its copy in Ceph: this one is not written",
        })?;
        let spec = self.spec(&name_of(instance, &copy.uid, place));
        let import = ["import", "--no-progress", "--image-feature", FEATURES, "-", &spec];
        succeeded(self.noted(self.client.feed_rbd(&import, copy.stored(), DATA).await)?)?;
        for former in before {
            if let Err(error) = self.remove_image(&name_of(instance, &copy.uid, former)).await {
                // The next copy, or the end of the VM, removes it.
                tracing::debug!(instance, error = error.chain(), "former copy of firmware state not removed");
            }
        }
        Ok(())
    }

    /// Reads the last copy for the VM with this uid. None: there is none that is whole.
    pub(in super::super) async fn firmware_copy(
        &self,
        instance: &str,
        uid: &str,
    ) -> Result<Option<FirmwareCopy>> {
        check_name("instance", instance)?;
        self.ensure_there().await?;
        for _ in 0..LISTS {
            let mut places = self.firmware_copies(instance, uid).await?;
            places.sort_unstable();
            let mut is_replaced = false;
            for place in places.into_iter().rev() {
                let image = name_of(instance, uid, place);
                let Some(bytes) = self.stored(&image).await? else {
                    is_replaced = true;
                    break;
                };
                match FirmwareCopy::read_stored(bytes).filter(|copy| copy.uid == uid) {
                    Some(copy) => return Ok(Some(copy)),
                    None => tracing::warn!(image, "a copy of firmware state is not whole"),
                }
            }
            if !is_replaced {
                return Ok(None);
            }
        }
        Err(Self::not_understood("the copies of a firmware state change all the time".to_owned()))
    }

    /// Removes all copies of an instance.
    pub(in super::super) async fn remove_firmware_copies(&self, instance: &str) -> Result<()> {
        check_name("instance", instance)?;
        self.ensure_there().await?;
        let prefix = prefix_of(instance);
        for image in self.names().await?.iter().filter(|name| name.starts_with(&prefix)) {
            self.remove_image(image).await?;
        }
        Ok(())
    }

    async fn firmware_copies(&self, instance: &str, uid: &str) -> Result<Vec<Place>> {
        Ok(self.names().await?.iter().filter_map(|name| place_of(name, instance, uid)).collect())
    }

    async fn names(&self) -> Result<Vec<String>> {
        let place = self.spec("");
        let args = ["ls", "--format", "json", place.trim_end_matches('/')];
        let reply = self.must(&args, PATIENCE).await?;
        replies::names(&reply.stdout).map_err(Self::not_understood)
    }

    /// Returns the data of an image; none of one that is too large. None: there is no such image.
    async fn stored(&self, image: &str) -> Result<Option<Vec<u8>>> {
        let most = u64::try_from(FirmwareCopy::MAX_STORED).unwrap_or(u64::MAX);
        match self.size(image).await? {
            None => return Ok(None),
            Some(size) if size > most => return Ok(Some(Vec::new())),
            Some(_) => {}
        }
        let reply = self.rbd_within(&["export", "--no-progress", &self.spec(image), "-"], DATA).await?;
        match reply.ok {
            true => Ok(Some(reply.stdout)),
            false if is_absent(&reply) => Ok(None),
            false => Err(Client::failed(&reply)),
        }
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        let removed = self.rbd_within(&["rm", "--no-progress", &self.spec(image)], DATA).await?;
        if removed.ok || is_absent(&removed) { Ok(()) } else { Err(Client::failed(&removed)) }
    }
}

/// The beginning of the names of the copies of an instance.
fn prefix_of(instance: &str) -> String {
    format!("berth-firmware-{instance}.")
}

fn prefix_of_vm(instance: &str, uid: &str) -> String {
    let digest = Sha256::digest(uid);
    let tag: String = digest.iter().take(TAG).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{tag}.", prefix_of(instance))
}

fn name_of(instance: &str, uid: &str, Place { epoch, number }: Place) -> String {
    format!("{}{epoch}.{number}", prefix_of_vm(instance, uid))
}

/// Returns the place of an image among the copies of this VM, if it is one of these.
fn place_of(name: &str, instance: &str, uid: &str) -> Option<Place> {
    let (epoch, number) = name.strip_prefix(&prefix_of_vm(instance, uid))?.split_once('.')?;
    let place = Place { epoch: epoch.parse().ok()?, number: number.parse().ok()? };
    // No other spelling: the image is named by its place.
    (name_of(instance, uid, place) == name).then_some(place)
}

/// Returns the place of a new copy after these. None: a later host has written one.
fn next(before: &[Place], epoch: i64) -> Option<Place> {
    let Some(last) = before.iter().max() else { return Some(Place { epoch, number: 1 }) };
    (last.epoch <= epoch).then(|| Place { epoch, number: last.number.saturating_add(1) })
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Layout;
    use super::*;
    use crate::{CephAccess, RbdPoolMapping};

    #[test]
    fn a_copy_of_a_later_host_comes_after_all_of_earlier_ones_which_replace_it_no_more() {
        let place = |epoch: i64, number: u64| Place { epoch, number };
        assert_eq!(next(&[], 4), Some(place(4, 1)));
        let of_former = [place(4, 8), place(4, 9)];
        assert_eq!(next(&of_former, 4), Some(place(4, 10)));
        let taken = next(&of_former, 5).expect("the next host writes");
        let both = [of_former[0], taken, of_former[1]];
        assert_eq!(next(&both, 4), None, "the former host writes no more");
        // One that it began to write before.
        let late = next(&of_former, 4).expect("no later one was listed");
        assert_ne!(late, taken, "it is another image");
        assert_eq!([late, taken].iter().max(), Some(&taken), "it is not read");
        assert!(place(10, 1) > place(9, 20), "by number, and not by the letters of the name");
    }

    #[test]
    fn the_name_of_a_copy_has_its_vm_and_its_place() {
        let place = Place { epoch: 12, number: 3 };
        let name = name_of("i-0a1b2c3d4e5f", "u1", place);
        assert_eq!(place_of(&name, "i-0a1b2c3d4e5f", "u1"), Some(place));
        assert!(name.len() < 96 && name.starts_with(&prefix_of("i-0a1b2c3d4e5f")), "{name}");
        assert_eq!(place_of(&name, "i-0a1b2c3d4e5f", "u2"), None, "of a VM of an earlier life of the site");
        assert_eq!(place_of(&name, "i-0a1b2c3d4e5", "u1"), None, "of another instance");
        let prefix = prefix_of_vm("i-1", "u");
        for other in ["1", "1.", ".1", "01.1", "1.+1", "1.1.1", "x.1", "1.99999999999999999999"] {
            assert_eq!(place_of(&format!("{prefix}{other}"), "i-1", "u"), None, "{other}");
        }
        assert_eq!(place_of("berth-v-1", "i-1", "u"), None);
    }

    #[tokio::test]
    async fn whether_there_is_a_copy_is_not_known_while_the_pool_is_away() {
        let mapping: RbdPoolMapping = "fast=vms".parse().expect("a mapping");
        let pool = RbdPool::new(&Layout::new("/state"), mapping, CephAccess::default(), None);
        let found = pool.firmware_copy("i-1", "u").await;
        assert!(matches!(found, Err(SystemError::PoolAway { .. })), "{found:?}");
        let removed = pool.remove_firmware_copies("i-1").await;
        assert!(matches!(removed, Err(SystemError::PoolAway { .. })), "{removed:?}");
        assert!(pool.firmware_copy("../x", "u").await.is_err(), "no name of an instance");
    }
}
