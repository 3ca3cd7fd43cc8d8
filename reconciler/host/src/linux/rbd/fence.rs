//! Volumes of another host, which is gone for good or has given their VM up: its clients of Ceph are refused from now on, and the volume is
//! this host's.
//!
//! ```text
//!                    checked      metadata (this host)      clients refused      note here (complete)
//!    image of OLD ─────────▶ ○ ─────────────────────▶ ○ ────────────────▶ ○ ────────────────────▶ volume
//! ```
//!
//! The metadata comes first: an agent of the former host that still runs starts no machine on the image from then on, so no client comes
//! after those that are refused. Those of the machine that it has started last are refused also if the cluster has forgotten them, as after
//! half a minute without a network. A crash at any moment leaves the image, and the next call begins again. Refused clients stay refused:
//! the refusal is of one process, by the number in its address, and a machine that is installed again, or a QEMU of a VM that comes back, has
//! other ones.

use super::client::{PATIENCE, REFUSED_FOR};
use super::note::Note;
use super::{CLIENTS, RbdPool, Result, locked, replies};
use crate::{NewTake, SystemError, VolumeFacts};

/// The greatest number of clients of one image.
const MOST_CLIENTS: usize = 64;

impl RbdPool {
    /// Takes a volume from a host that is gone for good or has given its VM up.
    pub(in super::super) async fn take(&self, new: &NewTake) -> Result<VolumeFacts> {
        // A note of this host may be from a time before another host took the volume.
        locked(&self.own).remove(&new.id);
        if let Some(found) = self.volume(&new.id).await? {
            return Ok(found);
        }
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let image = Self::name_of(&new.id);
        let text = self.meta(&image).await?.ok_or_else(lost)?;
        let note: Note = serde_json::from_str(&text).map_err(|error| damaged(new, &error.to_string()))?;
        if let Some(why) = why_not(&note, new, &self.host()) {
            return Err(damaged(new, why));
        }
        let note = Note { host: self.host(), complete: true, ..note };
        self.set_meta(&image, &note.text()).await?;
        self.fence(&image, &new.id).await?;
        self.note_left_snapshots(&new.id, note.luks.as_ref()).await?;
        self.write_note(&note).await?;
        tracing::info!(volume = new.id, host = new.from, "volume taken from another host");
        self.volume(&new.id).await?.ok_or_else(lost)
    }

    /// Notes the clients that have the image of a volume open.
    pub(super) async fn note_clients(&self, id: &str) -> Result<()> {
        let image = Self::name_of(id);
        let mut clients = self.clients(&image).await?;
        clients.retain(|client| replies::is_address(client));
        clients.truncate(MOST_CLIENTS);
        match clients.is_empty() {
            true => Ok(()),
            false => self.set_entry(&image, CLIENTS, &clients.join(" ")).await,
        }
    }

    /// Returns the addresses of the clients that have an image open or have its lock.
    async fn clients(&self, image: &str) -> Result<Vec<String>> {
        let (lockers, mut addresses) = self.lockers_and_watchers(image).await?;
        addresses.extend(lockers.into_iter().map(|locker| locker.address));
        addresses.sort();
        addresses.dedup();
        Ok(addresses)
    }

    /// Returns the locks of an image, and the addresses of the clients that have it open.
    pub(super) async fn lockers_and_watchers(
        &self,
        image: &str,
    ) -> Result<(Vec<replies::Locker>, Vec<String>)> {
        let spec = self.spec(image);
        let reply = self.must(&["lock", "ls", "--format", "json", &spec], PATIENCE).await?;
        let lockers = replies::lockers(&reply.stdout).map_err(Self::not_understood)?;
        // A client that has just been forgotten holds it up for ten seconds.
        let reply = self.must(&["status", "--format", "json", &spec], PATIENCE * 4).await?;
        let watchers = replies::watchers(&reply.stdout).map_err(Self::not_understood)?;
        Ok((lockers, watchers))
    }

    /// Removes the locks of clients that do not have the image open any more. The lock of a client that has ended stays until another one
    /// writes, and an image with such a lock cannot be removed. Returns whether there was one.
    pub(super) async fn break_locks(&self, image: &str) -> Result<bool> {
        let spec = self.spec(image);
        let (lockers, open) = self.lockers_and_watchers(image).await?;
        let left: Vec<_> = lockers.iter().filter(|of| of.is_plain() && !open.contains(&of.address)).collect();
        for locker in &left {
            self.remove_lock(&spec, locker).await?;
        }
        Ok(!left.is_empty())
    }

    /// Removes a lock, which refuses its client anew: for as long as it is refused already.
    async fn remove_lock(&self, spec: &str, locker: &replies::Locker) -> Result<()> {
        let lasting = ["--rbd_blocklist_expire_seconds", REFUSED_FOR];
        let args = ["lock", "rm", spec, &locker.id, &locker.client, lasting[0], lasting[1]];
        self.must(&args, PATIENCE * 4).await.map(drop)
    }

    /// Has the cluster refuse every client that has the image open or has its lock, and those that were noted, and removes their locks: the
    /// next writer would break them, and refuse the clients anew for an hour only.
    async fn fence(&self, image: &str, id: &str) -> Result<()> {
        let mut addresses = self.clients(image).await?;
        let noted = self.entry(image, CLIENTS).await?.unwrap_or_default();
        let noted = noted.split_whitespace().filter(|client| replies::is_address(client));
        addresses.extend(noted.map(str::to_owned));
        addresses.sort();
        addresses.dedup();
        if addresses.len() > MOST_CLIENTS {
            let detail = "more than 64 clients of Ceph have it open, or had it, although its host is gone for good or has given it up";
            return Err(SystemError::VolumeBusy { id: id.to_owned(), detail });
        }
        for address in &addresses {
            self.refuse_client(address).await?;
        }
        let (lockers, _) = self.lockers_and_watchers(image).await?;
        for locker in lockers.iter().filter(|of| of.is_plain() && addresses.contains(&of.address)) {
            self.remove_lock(&self.spec(image), locker).await?;
        }
        Ok(())
    }

    async fn refuse_client(&self, address: &str) -> Result<()> {
        if !replies::is_address(address) {
            return Err(Self::not_understood(format!("{address:?} is not the address of a client")));
        }
        let done = self.client.ceph(&["osd", "blocklist", "add", address, REFUSED_FOR]).await?;
        if !done.ok {
            let detail = done.stderr.lines().last().unwrap_or("it gives no reason").to_owned();
            return Err(SystemError::Program { program: "ceph", detail });
        }
        tracing::info!(pool = self.mapping.pool, address, "client of a former host refused by Ceph");
        Ok(())
    }
}

/// Returns why the volume with this note is not taken, if it is not. The content that it is a clone of is in Ceph, also if that of its Image was
/// made anew since.
fn why_not(note: &Note, new: &NewTake, host: &str) -> Option<&'static str> {
    let refusals = [
        (note.volume_id != new.id, "its image is that of another volume"),
        (note.owner.uid != new.uid, "it is of another Disk"),
        (note.host != new.from && note.host != host, "its image is that of another host"),
    ];
    refusals.into_iter().find_map(|(refuses, why)| refuses.then_some(why))
}

fn damaged(new: &NewTake, detail: &str) -> SystemError {
    SystemError::VolumeDamaged { id: new.id.clone(), detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VolumeOwner;

    #[test]
    fn only_a_plain_volume_of_the_lost_host_and_the_same_disk_is_taken() {
        let owner = VolumeOwner {
            namespace: "n".to_owned(),
            name: "d".to_owned(),
            uid: Some("u".to_owned()),
            image: None,
            source: None,
        };
        let note = Note {
            volume_id: "v-1".to_owned(),
            host: "a".to_owned(),
            owner,
            base: None,
            complete: false,
            retained: false,
            deleted_at: None,
            deleted_after: None,
            removing: false,
            restores: Vec::new(),
            restoring: None,
            unwritten_since: None,
            luks: None,
        };
        let new = NewTake {
            pool: "fast".to_owned(),
            id: "v-1".to_owned(),
            from: "a".to_owned(),
            uid: Some("u".to_owned()),
            base: None,
        };
        assert_eq!(why_not(&note, &new, "b"), None);
        // An earlier call has set the metadata.
        assert_eq!(why_not(&Note { host: "b".to_owned(), ..note.clone() }, &new, "b"), None);
        let other_host = Note { host: "c".to_owned(), ..note.clone() };
        let other_disk = NewTake { uid: Some("w".to_owned()), ..new.clone() };
        let anew = NewTake { base: Some("d".to_owned()), ..new.clone() };
        assert_eq!(why_not(&note, &anew, "b"), None, "the content of its Image was made anew");
        for (note, new) in [(&other_host, &new), (&note, &other_disk)] {
            assert!(why_not(note, new, "b").is_some(), "{note:?} {new:?}");
        }
        let read: Note = serde_json::from_str(&note.text()).expect("read");
        assert_eq!(read, note);
    }
}
