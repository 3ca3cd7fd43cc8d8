//! Encrypted files of volumes: `qemu-img` makes them, as the header of LUKS in them needs ciphers that berth does not have. It reads the
//! key from its standard input and opens no other file.
//!
//! Every file of a volume has a master key of its own, which the key of the volume opens.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_qemu::machine::{Backing, DiskKey, Format};
use berth_qemu::process::TOOL_KEY;
use berth_qemu::qcow2;
use jiff::Timestamp;

use super::super::files::{self, failed};
use super::super::qemu_img::{QEMU_IMG, secret_on_stdin, text};
use super::note::Note;
use super::snapshot_note::SnapshotNote;
use super::{LinuxVolumes, Place, Result};
use crate::{SealedKey, SystemError};

/// The key is random: a long derivation would protect nothing, and each file of a chain needs one when it is opened. QEMU's least
/// number of iterations.
const ITERATION_MILLISECONDS: u32 = 10;
/// `qemu-img` measures the speed of the processor for some seconds of its time.
const TIME: Duration = Duration::from_secs(120);
/// Of that measurement.
const ATTEMPTS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The maximum length of its words in an error.
const WORDS: u64 = 2000;

/// A file of a volume that is to be created.
pub(super) struct NewFile<'a> {
    pub(super) size: u64,
    /// The file that it is an overlay on, which has no more than its size. None: it is empty.
    pub(super) backing: Option<&'a Backing>,
    pub(super) encryption: Option<&'a SealedKey>,
}

impl LinuxVolumes {
    /// Creates the file of a volume. It appears complete or not at all, and replaces no file.
    pub(super) fn create_file(&self, place: &Place, file: &Path, new: NewFile<'_>) -> Result<()> {
        let NewFile { size, backing, encryption } = new;
        match (self.keys.key_of(&place.id, encryption)?, backing) {
            (Some(key), _) => create_encrypted(file, size, backing, &key),
            (None, Some(backing)) => {
                qcow2::create_overlay(file, size, backing).map_err(|error| place.refused(error))
            }
            (None, None) => qcow2::create(file, size).map_err(|error| place.refused(error)),
        }
    }

    /// Writes another form of its key into the notes of a volume and its snapshots. Its files do not change.
    pub(in super::super) fn rewrap(&self, pool: &str, id: &str, sealed: &SealedKey) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let is_its = |noted: Option<&SealedKey>| noted.is_some_and(|noted| noted.id == sealed.id);
        // The volume comes last: after a crash all of it is done again.
        for snapshot in self.snapshot_ids(pool)? {
            let at = self.snapshot_place(pool, &snapshot)?;
            if let Some(note) = at.read()?.filter(|n| n.volume_id == id && is_its(n.encryption.as_ref())) {
                SnapshotNote { encryption: Some(sealed.clone()), ..note }.write(&at.note)?;
            }
        }
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let note = Note::read(&place.note)?.ok_or_else(lost)?;
        let note = note.map_err(|detail| place.damaged(&detail))?;
        if !is_its(note.encryption.as_ref()) {
            return Err(place.damaged("it has another key than the one that is wrapped"));
        }
        Note { encryption: Some(sealed.clone()), ..note }.write(&place.note)?;
        tracing::info!(volume = id, wrapped_by = sealed.wrapped_by, "key of a volume wrapped again");
        Ok(())
    }
}

/// The format of a file with this key.
pub(super) fn format_of(sealed: Option<&SealedKey>) -> Format {
    if sealed.is_some() { Format::EncryptedQcow2 } else { Format::Qcow2 }
}

fn create_encrypted(file: &Path, size: u64, backing: Option<&Backing>, key: &DiskKey) -> Result<()> {
    let unfinished = unfinished(file)?;
    let made = until_measured(|| run(&unfinished, size, backing, key)).and_then(|()| {
        fs::set_permissions(&unfinished, Permissions::from_mode(0o600))
            .map_err(failed("change the mode of", &unfinished))?;
        File::open(&unfinished).and_then(|made| made.sync_all()).map_err(failed("write", &unfinished))?;
        qcow2::rename_new(&unfinished, file).map_err(failed("rename", &unfinished))
    });
    made.inspect_err(|_| {
        // Best effort: the next attempt removes it too.
        let _ = files::remove_if_there(&unfinished);
    })
}

/// Returns a name for the file until it is whole, and removes those of former attempts. No attempt has the name of another one: the
/// program of an agent that was killed may run on, and would write to the file of the next.
fn unfinished(file: &Path) -> Result<PathBuf> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{}{name}.new-", files::UNFINISHED);
    if let Some(folder) = file.parent() {
        for former in files::names(folder)?.iter().filter(|found| found.starts_with(&prefix)) {
            let former = folder.join(former);
            files::remove_if_there(&former).map_err(failed("remove", &former))?;
        }
    }
    Ok(file.with_file_name(format!("{prefix}{}", Timestamp::now().as_nanosecond())))
}

/// Runs `qemu-img` again if it could not measure how long it derives a key: on a busy machine, the processor time that it reads may not
/// have changed.
fn until_measured(mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let is_unmeasured = |error: &SystemError| error.to_string().contains("Unable to get accurate CPU usage");
    for _ in 1..ATTEMPTS {
        let made = run();
        if !made.as_ref().is_err_and(is_unmeasured) {
            return made;
        }
    }
    run()
}

/// Makes the LUKS header of an image of Ceph, which this key opens, in a file. Returns its size in bytes.
pub(in super::super) fn create_header(file: &Path, key: &DiskKey) -> Result<u64> {
    let options = format!("key-secret={TOOL_KEY},iter-time={ITERATION_MILLISECONDS}");
    until_measured(|| run_create(&["-f", "luks", "-o", &options], file, 0, key))?;
    fs::metadata(file).map(|made| made.len()).map_err(failed("read", file))
}

fn run(file: &Path, size: u64, backing: Option<&Backing>, key: &DiskKey) -> Result<()> {
    let options = format!(
        "encrypt.format=luks,encrypt.key-secret={TOOL_KEY},encrypt.iter-time={ITERATION_MILLISECONDS}"
    );
    let mut all = vec!["-f", "qcow2", "-o", options.as_str()];
    let below = backing.map(|backing| (text(&backing.file), backing.format.driver()));
    if let Some((below, driver)) = &below {
        // Without looking at it: its header may be a guest's.
        all.extend(["-u", "-b", below.as_str(), "-F", *driver]);
    }
    run_create(&all, file, size, key)
}

fn run_create(options: &[&str], file: &Path, size: u64, key: &DiskKey) -> Result<()> {
    let mut command = Command::new(QEMU_IMG.find()?);
    command.args(["create", "-q", "--object", &secret_on_stdin()]);
    let spawned = command
        .args(options)
        .arg(file)
        .arg(size.to_string())
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| QEMU_IMG.failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading the key reports the reason on its standard error.
        let _ = stdin.write_all(key.passphrase().as_bytes());
    }
    wait(&mut child, file)
}

fn wait(child: &mut Child, file: &Path) -> Result<()> {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| QEMU_IMG.failed(error.to_string()))? {
            Some(status) => break status,
            None if begun.elapsed() > TIME => {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(QEMU_IMG.failed(format!("it has not ended within {TIME:?}")));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // The words are for people only.
        let _ = stderr.take(WORDS).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    match said.contains("No space left") {
        true => Err(super::super::qemu_img::no_space(file)),
        false => Err(QEMU_IMG.failed(format!("{}: {said} ({status})", text(file)))),
    }
}

#[cfg(test)]
#[path = "encryption_tests.rs"]
mod tests;
