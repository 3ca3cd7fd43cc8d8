//! The keys of the encrypted disks of this host: unlocked with the keys of their KeyClasses, and sealed with others.
//!
//! ```text
//!                        class and its Secret read        declared class is another one
//!  sealed, beside the file ───────────────────▶ unlocked ───────────────────────────▶ sealed with that one, beside the file
//!  no file yet             ───────────────────▶ a new key, sealed
//! ```
//!
//! Keys are in memory only. A Secret that is gone, or has another key, ends that: running machines go on, and none is started.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Disk, EncryptionStatus, HotswapDiskAttachment, Readiness, Reason, VM};
use berth_host::SealedKey;
use kube::ResourceExt;

use crate::context::Context;
use crate::disk_keys::Missing;
use crate::index::volume_of;
use crate::key::{Key, ObjectName};
use crate::sealing::WrappingKey;

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

/// Unlocks a key with the class that it is sealed with. A failure is reported by those that need the key.
pub(crate) async fn unlock_quietly(ctx: &Context, sealed: Option<&SealedKey>) {
    let Some(sealed) = sealed.filter(|sealed| ctx.system.unlocked(&sealed.id).is_none()) else { return };
    if let Err(missing) = unlock(ctx, sealed).await {
        tracing::debug!(
            class = sealed.wrapped_by,
            why = missing.readiness.message(),
            "key of a snapshot not known"
        );
    }
}

/// The key as the status of a Disk or DiskSnapshot reports it.
pub(crate) fn reported(sealed: Option<&SealedKey>) -> Option<Box<EncryptionStatus>> {
    sealed.map(|sealed| {
        Box::new(EncryptionStatus {
            key_class: sealed.wrapped_by.clone(),
            provider_id: sealed.provider.clone(),
            key_id: sealed.wrapping_key_id.clone(),
            disk_key_id: sealed.id.clone(),
            generation: sealed.generation.into(),
        })
    })
}

fn no_class(text: String) -> Missing {
    Missing { readiness: Readiness::Reconciling(Reason::WaitingForKeyClass, text), is_gone: false }
}

fn failed(text: String) -> Missing {
    Missing { readiness: Readiness::Stalled(Reason::WrongKey, text), is_gone: false }
}

/// Reads the key of the class that a disk declares.
async fn declared_key(ctx: &Context, disk: &Disk, class: &str) -> Result<Arc<WrappingKey>, Missing> {
    let namespace = disk.namespace().unwrap_or_default();
    let found = ctx.index.read().key_classes.find(&namespace, class);
    let missing =
        || no_class(format!("KeyClass {class} does not exist in namespace {namespace} or berth-shared"));
    ctx.disk_keys.wrapping_key(&found.ok_or_else(missing)?, ctx.now()).await
}

/// Reads the key of the class that a key is sealed with.
async fn wrapping_key_of(ctx: &Context, sealed: &SealedKey) -> Result<Arc<WrappingKey>, Missing> {
    let missing =
        || no_class(format!("KeyClass {}, which protects its key, does not exist", sealed.wrapped_by));
    let (namespace, name) = sealed.wrapped_by.split_once('/').ok_or_else(missing)?;
    let found = ctx.index.read().key_classes.get(&ObjectName::new(namespace, name));
    ctx.disk_keys.wrapping_key(&found.ok_or_else(missing)?, ctx.now()).await
}

/// Opens a key with the key of its class, and keeps it. One that cannot be opened any more is forgotten.
async fn unlock(ctx: &Context, sealed: &SealedKey) -> Result<(), Missing> {
    let opened = match wrapping_key_of(ctx, sealed).await {
        Ok(with) => with
            .open(sealed)
            .map_err(|text| Missing { readiness: Readiness::Stalled(Reason::WrongKey, text), is_gone: true }),
        Err(missing) => Err(missing),
    };
    match opened {
        Ok(key) => ctx.system.unlock(&sealed.id, key),
        Err(missing) => {
            if missing.is_gone {
                ctx.system.lock(&sealed.id);
            }
            return Err(missing);
        }
    }
    Ok(())
}

async fn new(ctx: &Context, disk: &Disk, class: &str) -> Result<KeyState, Missing> {
    let with = declared_key(ctx, disk, class).await?;
    let sealed = ctx.disk_keys.new_key(volume_of(disk).unwrap_or_default(), &with);
    sealed.map(|sealed| KeyState::Wraps(Box::new(sealed))).map_err(failed)
}

/// Returns a key sealed with the class that a disk declares.
async fn sealed_with(
    ctx: &Context,
    disk: &Disk,
    class: &str,
    sealed: &SealedKey,
    is_copy: bool,
) -> Result<KeyState, Missing> {
    let known = ctx.system.unlocked(&sealed.id);
    let was_locked = known.is_none();
    let with = declared_key(ctx, disk, class).await;
    let is_same = with.as_ref().is_ok_and(|with| with.class == sealed.wrapped_by);
    let unlocked = unlock(ctx, sealed).await;
    let now = ctx.system.unlocked(&sealed.id);
    // The class that it is to have no longer may be gone before the other one protects it.
    let key = if is_same { now } else { now.or(known) };
    if let Some(key) = &key {
        ctx.system.unlock(&sealed.id, key.clone());
        if was_locked {
            wake_users(ctx, disk);
        }
    }
    match (is_same, key) {
        (true, Some(_)) if !is_copy => Ok(KeyState::Synced(Box::new(sealed.clone()))),
        (_, Some(key)) => {
            let generation = if is_copy { 1 } else { sealed.generation.saturating_add(1) };
            with?.seal(&key, generation).map(|sealed| KeyState::Wraps(Box::new(sealed))).map_err(failed)
        }
        (_, None) => Err(unlocked.err().unwrap_or_else(|| failed("its key is not known".to_owned()))),
    }
}

/// Enqueues the VMs and attachments that may wait for the key: the status of the Disk may stay as it is.
fn wake_users(ctx: &Context, disk: &Disk) {
    let name = ObjectName::of(disk);
    for user in disk.status.iter().flat_map(|status| &status.used_by) {
        ctx.enqueue(Key::new::<VM>(name.beside(&user.vm)));
        if let Some(attachment) = &user.attachment {
            ctx.enqueue(Key::new::<HotswapDiskAttachment>(name.beside(attachment)));
        }
    }
}
