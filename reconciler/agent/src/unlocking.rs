//! The keys of the encrypted disks of this host: unlocked with the keys of their KeyClasses, and sealed with others.
//!
//! ```text
//!                        class and its Secret read        declared class is another one
//!  sealed, beside the file ───────────────────▶ unlocked ───────────────────────────▶ sealed with that one, beside the file
//!  no file yet             ───────────────────▶ a new key, sealed
//! ```
//!
//! Keys are in memory only, each held by the volumes and snapshots that have it. A Secret that is gone, or has another key, ends that, and
//! a Vault that refuses too: running machines go on, and none is started. A Vault that does not answer ends nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::{Disk, EncryptionStatus, KeyClass, Readiness, Reason};
use berth_host::SealedKey;
use kube::ResourceExt;

use crate::context::Context;
use crate::disk_keys::name_of;
use crate::index::{Indexed, volume_of};
use crate::key::{Key, ObjectName};
use crate::key_provider::{KeyProvider, Missing};

/// How often a disk looks whether the key of its class is still the same.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// How often a disk looks for a key that is missing.
pub(crate) const LOOK_FOR: Duration = Duration::from_secs(10);

/// The key of a disk as it is on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// It is not encrypted, and is not to be.
    #[default]
    Plain,
    /// It is known, and sealed so: as declared.
    Synced(Box<SealedKey>),
    /// It is known, and sealed so: as declared. The key of its class cannot be used now, and nothing is known against it.
    Unconfirmed(Box<SealedKey>),
    /// It is known, and is to be sealed so.
    Wraps(Box<SealedKey>),
    /// It is not known, or cannot be sealed as declared.
    Waits(Readiness),
}

/// The file that a key is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held<'a> {
    /// A file that has this key; None: it is not encrypted.
    File(Option<&'a SealedKey>),
    /// A new file with the data of a disk or a snapshot that has this key.
    Copy(Option<&'a SealedKey>),
    /// A new file without a key.
    New,
}

/// Returns the key of a disk, and unlocks it if it can be.
pub(crate) async fn observe(ctx: &Context, disk: &Disk, held: Held<'_>) -> KeyState {
    let volume = volume_of(disk).unwrap_or_default();
    if let Held::File(key) = held {
        ctx.disk_keys.made(volume, key);
    }
    let declared = disk.spec.encryption.as_deref().map(|encryption| encryption.key_class.as_str());
    let found = match (declared, held) {
        // No file is made any more.
        (_, Held::New | Held::Copy(_)) if disk.metadata.deletion_timestamp.is_some() => {
            return KeyState::Plain;
        }
        (None, Held::New | Held::Copy(None) | Held::File(None)) => return KeyState::Plain,
        (Some(_), Held::File(None)) => {
            let text = "encryption is declared, and its file is not encrypted: make the Disk anew without encryption".to_owned();
            return KeyState::Waits(Readiness::Stalled(Reason::InvalidSpec, text));
        }
        (Some(_), Held::Copy(None)) => {
            let text = "encryption is declared, and its source is not encrypted: a copy is as its source is";
            return KeyState::Waits(Readiness::Stalled(Reason::InvalidSpec, text.to_owned()));
        }
        (None, Held::Copy(Some(_))) => {
            let text = "its source is encrypted: declare encryption for the copy too";
            return KeyState::Waits(Readiness::Stalled(Reason::InvalidSpec, text.to_owned()));
        }
        (None, Held::File(Some(sealed))) => {
            let text = format!(
                "its file is encrypted, and no encryption is declared: make the Disk anew with encryption, of KeyClass {}",
                sealed.wrapped_by
            );
            return KeyState::Waits(Readiness::Stalled(Reason::InvalidSpec, text));
        }
        (Some(class), Held::New) => new(ctx, disk, class).await,
        (Some(class), Held::Copy(Some(sealed))) => sealed_with(ctx, disk, class, sealed, true).await,
        (Some(class), Held::File(Some(sealed))) => sealed_with(ctx, disk, class, sealed, false).await,
    };
    found.unwrap_or_else(|missing| KeyState::Waits(missing.readiness))
}

/// Unlocks the key of a snapshot with the class that it is sealed with, and returns when to look again; None: it is not encrypted. A
/// failure is reported by those that need the key.
pub(crate) async fn unlock_snapshot(
    ctx: &Context,
    snapshot: &str,
    sealed: Option<&SealedKey>,
) -> Option<Duration> {
    let sealed = sealed?;
    let Err(missing) = unlock(ctx, sealed, snapshot).await else { return Some(LOOK_AGAIN) };
    let why = missing.readiness.message();
    tracing::debug!(class = sealed.wrapped_by, why, "key of a snapshot not known");
    Some(LOOK_FOR)
}

/// Forgets the keys of volumes and snapshots that no Disk and no DiskSnapshot here has any more.
pub(crate) fn forget_departed(ctx: &Context) {
    let holders: BTreeSet<String> = {
        let tables = ctx.index.read();
        let volumes = tables.disks.all().filter_map(|(_, disk)| volume_of(disk).map(str::to_owned));
        let snapshots =
            tables.disk_snapshots.all().filter_map(|(_, found)| found.status.as_ref()?.snapshot_id.clone());
        volumes.chain(snapshots).collect()
    };
    ctx.disk_keys.keep(&holders);
}

/// The key as the status of a Disk or DiskSnapshot reports it.
pub(crate) fn reported(sealed: Option<&SealedKey>) -> Option<Box<EncryptionStatus>> {
    sealed.map(|sealed| {
        Box::new(EncryptionStatus {
            key_class: sealed.wrapped_by.clone(),
            provider_id: sealed.provider.clone(),
            key_id: sealed.wrapping_key_id.clone(),
            disk_key_id: sealed.id.clone(),
            next: None,
            generation: sealed.generation.into(),
        })
    })
}

fn no_class(text: String) -> Missing {
    Missing { readiness: Readiness::Reconciling(Reason::WaitingForKeyClass, text), is_gone: false }
}

/// The key cannot be opened with a class that the disk does not declare (any more). The host may read its Secret only once it is declared
/// again, if no report of this host had it: after a restore of the control plane, for example.
fn undeclared(missing: Missing, sealed: &SealedKey) -> Missing {
    let why = missing.readiness.message();
    let text = format!("its key is protected by KeyClass {}: declare it ({why})", sealed.wrapped_by);
    let readiness = match missing.readiness {
        Readiness::Stalled(reason, _) => Readiness::Stalled(reason, text),
        other => Readiness::Reconciling(other.reason(), text),
    };
    Missing { readiness, ..missing }
}

/// Returns the class that a disk declares.
fn declared_class(ctx: &Context, disk: &Disk, class: &str) -> Result<Arc<KeyClass>, Missing> {
    let namespace = disk.namespace().unwrap_or_default();
    let found = ctx.index.read().key_classes.find(&namespace, class);
    found.ok_or_else(|| {
        no_class(format!("KeyClass {class} does not exist in namespace {namespace} or berth-shared"))
    })
}

/// Reads the key of the class that a key is sealed with.
async fn wrapping_key_of(ctx: &Context, sealed: &SealedKey) -> Result<Arc<KeyProvider>, Missing> {
    let missing =
        || no_class(format!("KeyClass {}, which protects its key, does not exist", sealed.wrapped_by));
    let (namespace, name) = sealed.wrapped_by.split_once('/').ok_or_else(missing)?;
    let found = ctx.index.read().key_classes.get(&ObjectName::new(namespace, name));
    let class = found.ok_or_else(missing)?;
    ctx.disk_keys.opening_key(&class, ctx.now()).await
}

/// Opens a key with the key of its class, and keeps it for a volume or a snapshot. One that cannot be opened any more is forgotten.
async fn unlock(ctx: &Context, sealed: &SealedKey, holder: &str) -> Result<(), Missing> {
    let opened = match wrapping_key_of(ctx, sealed).await {
        Ok(with) => ctx.disk_keys.open(&with, sealed, holder, ctx.now()).await,
        Err(missing) => Err(missing),
    };
    match opened {
        Ok(key) => {
            ctx.system.unlock(&sealed.id, holder, key);
            Ok(())
        }
        Err(missing) => {
            if missing.is_gone {
                ctx.system.lock(&sealed.id, holder);
            }
            Err(missing)
        }
    }
}

async fn new(ctx: &Context, disk: &Disk, class: &str) -> Result<KeyState, Missing> {
    let volume = volume_of(disk).unwrap_or_default();
    // A restore goes on with the key that it began with. A class that is declared meanwhile protects that one afterwards.
    if ctx.pulls.is_restoring(volume)
        && let Some(sealed) = ctx.disk_keys.key_in_making(volume)
    {
        return Ok(KeyState::Wraps(Box::new(sealed)));
    }
    let class = declared_class(ctx, disk, class)?;
    let with = ctx.disk_keys.sealing_key(&class, ctx.now()).await?;
    let sealed = ctx.disk_keys.new_key(volume, &with).await?;
    Ok(KeyState::Wraps(Box::new(sealed)))
}

/// Returns a key sealed with the class that a disk declares.
async fn sealed_with(
    ctx: &Context,
    disk: &Disk,
    class: &str,
    sealed: &SealedKey,
    is_copy: bool,
) -> Result<KeyState, Missing> {
    let volume = volume_of(disk).unwrap_or_default();
    let known = ctx.system.unlocked(&sealed.id, volume);
    let was_locked = known.is_none();
    let declared = declared_class(ctx, disk, class);
    // By its name: a class whose Secret is gone is the same still, and its key is to be forgotten.
    let is_same = declared.as_ref().is_ok_and(|class| name_of(class) == sealed.wrapped_by);
    let unlocked = unlock(ctx, sealed, volume).await;
    let now = ctx.system.unlocked(&sealed.id, volume);
    // The class that it is to have no longer may be gone before the other one protects it.
    let key = if is_same { now } else { now.or(known) };
    if let Some(key) = &key {
        ctx.system.unlock(&sealed.id, volume, key.clone());
        if was_locked {
            wake_users(ctx, disk);
        }
    }
    match (is_same, key) {
        (true, Some(_)) if !is_copy => {
            let sealed = Box::new(sealed.clone());
            Ok(if unlocked.is_ok() { KeyState::Synced(sealed) } else { KeyState::Unconfirmed(sealed) })
        }
        (_, Some(key)) => {
            let generation = if is_copy { 1 } else { sealed.generation.saturating_add(1) };
            let class = declared?;
            let with = ctx.disk_keys.sealing_key(&class, ctx.now()).await?;
            let sealed = ctx.disk_keys.seal(&with, &key, generation, volume).await?;
            Ok(KeyState::Wraps(Box::new(sealed)))
        }
        (_, None) => {
            let missing = unlocked.err().unwrap_or_else(|| Missing::wrong("its key is not known".to_owned()));
            Err(if is_same || is_copy { missing } else { undeclared(missing, sealed) })
        }
    }
}

/// Enqueues the VMs and attachments that may wait for the key: the status of the Disk may stay as it is, as after a start of the agent.
fn wake_users(ctx: &Context, disk: &Disk) {
    let keys = Disk::keys_of(&ObjectName::of(disk), disk, &ctx.index.read());
    let own = Key::of(disk);
    keys.into_iter().filter(|key| *key != own).for_each(|key| ctx.enqueue(key));
}
