//! The firmware variables and the memory of the TPM of an instance, as an archive for the next host of its VM.
//!
//! ```text
//!   instances/<id>/vars*.fd, tpm/*  ──pack──▶ archive ──▶ <shared pool>/firmware/<id>.state       (a copy, for a host that is lost)
//!                                                └──────▶ instances/<id>/vars*.fd, tpm/*           on the next host
//! ```
//!
//! An installation that was interrupted is repeated from its start: the caller records its end. A guest, its QEMU and its swtpm have written what
//! is read here, and another host what is installed: names and sizes are checked.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};

use super::super::files::{self, blocking, failed};
use super::super::layout::check_name;
use super::{LinuxMachines, Result, remove_folder};
use crate::{MAX_FIRMWARE_ARCHIVE, SystemError};

mod copy;

/// The files of variables: of each kind of firmware that the machine has had.
const VARIABLES: [&str; 3] = ["vars.fd", "vars-own-keys.fd", "vars-secure-boot.fd"];
/// The beginning of the names of the files of a TPM in an archive.
const TPM: &str = "tpm/";
/// The beginning of the name of a file with the memory of a TPM, which swtpm chooses.
const TPM_MEMORY: &str = "tpm2-";
const MOST_TPM_FILES: usize = 16;
/// The variables of AArch64's firmware are the largest file: 64 MiB, nearly all of them zeros.
const MOST_VARIABLES: u64 = 64 << 20;
/// The memory of a TPM is some hundred KiB.
const MOST_TPM_FILE: u64 = 4 << 20;
/// How often the files are read until nothing has changed meanwhile.
const READS: usize = 5;
const VERSION: u32 = 1;

/// The files by name, with their bytes.
type Files = BTreeMap<String, Vec<u8>>;

#[derive(Serialize, Deserialize)]
struct PackedState {
    version: u32,
    files: Vec<PackedFile>,
}

#[derive(Serialize, Deserialize)]
struct PackedFile {
    name: String,
    /// Its bytes, compressed (DEFLATE), in base64.
    data: String,
}

impl LinuxMachines {
    pub(in super::super) async fn firmware_state(&self, instance: &str) -> Result<Vec<u8>> {
        check_name("instance", instance)?;
        let (folder, tpm) = (self.layout.instance(instance), self.layout.tpm(instance));
        blocking(move || {
            let mut found = read(&folder, &tpm)?;
            for _ in 0..READS {
                let again = read(&folder, &tpm)?;
                if again == found && found.is_empty() {
                    return Ok(Vec::new());
                }
                if again == found {
                    return pack(&found).map_err(failed("archive the firmware state in", &folder));
                }
                found = again;
            }
            let changes = io::Error::other("the guest changes it all the time");
            Err(failed("read the firmware state in", &folder)(changes))
        })
        .await
    }

    pub(in super::super) async fn install_firmware_state(
        &self,
        instance: &str,
        archive: &[u8],
    ) -> Result<()> {
        if let Some(process) = self.process(instance).await? {
            let (instance, pid) = (instance.to_owned(), process.identity.pid);
            return Err(SystemError::StillRunning { instance, pid });
        }
        self.end_helpers(instance).await?;
        let (folder, tpm) = (self.layout.instance(instance), self.layout.tpm(instance));
        let archive = archive.to_vec();
        blocking(move || {
            let invalid = |detail: String| io::Error::new(io::ErrorKind::InvalidData, detail);
            let new = unpack(&archive)
                .map_err(|detail| failed("understand the firmware state for", &folder)(invalid(detail)))?;
            install(&folder, &tpm, &new)
        })
        .await
    }

    pub(in super::super) async fn has_tpm_state(&self, instance: &str) -> Result<bool> {
        check_name("instance", instance)?;
        let tpm = self.layout.tpm(instance);
        blocking(move || Ok(files::names(&tpm)?.iter().any(|name| name.starts_with(TPM_MEMORY)))).await
    }
}

/// Reads the files that are there.
fn read(folder: &Path, tpm: &Path) -> Result<Files> {
    let mut found = Files::new();
    for name in VARIABLES {
        if let Some(bytes) = read_file(&folder.join(name), MOST_VARIABLES)? {
            found.insert(name.to_owned(), bytes);
        }
    }
    let of_tpm = files::names(tpm)?.into_iter().filter(|name| name.starts_with(TPM_MEMORY));
    for name in of_tpm.filter(|name| is_tpm_file(name)).take(MOST_TPM_FILES) {
        // swtpm exchanges its files by renaming.
        if let Some(bytes) = read_file(&tpm.join(&name), MOST_TPM_FILE)? {
            found.insert(format!("{TPM}{name}"), bytes);
        }
    }
    Ok(found)
}

/// Reads a regular file, in whose folder the user of QEMU may have put anything else under its name.
fn read_file(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("read", path))?,
    };
    let about = file.metadata().map_err(failed("look at", path))?;
    if !about.is_file() || about.len() > most {
        let unusable = format!("it is no file of at most {} MiB", most >> 20);
        return Err(failed("read", path)(io::Error::new(io::ErrorKind::InvalidData, unusable)));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(Some(bytes))
}

/// Whether a name is that of a file in the folder of a TPM.
fn is_tpm_file(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_plain)
}

/// Returns the same bytes for the same files.
fn pack(found: &Files) -> io::Result<Vec<u8>> {
    let archived = |(name, bytes): (&String, &Vec<u8>)| -> io::Result<PackedFile> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes)?;
        Ok(PackedFile { name: name.clone(), data: STANDARD.encode(encoder.finish()?) })
    };
    let files = found.iter().map(archived).collect::<io::Result<Vec<PackedFile>>>()?;
    let archive = serde_json::to_vec(&PackedState { version: VERSION, files })?;
    match archive.len() <= MAX_FIRMWARE_ARCHIVE {
        true => Ok(archive),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is larger than 16 MiB")),
    }
}

/// Returns the files of an archive; none of an empty one. The error is for people.
fn unpack(archive: &[u8]) -> std::result::Result<Files, String> {
    if archive.is_empty() {
        return Ok(Files::new());
    }
    if archive.len() > MAX_FIRMWARE_ARCHIVE {
        return Err("it is larger than 16 MiB".to_owned());
    }
    let PackedState { version, files } =
        serde_json::from_slice(archive).map_err(|error| format!("it is no archive: {error}"))?;
    if version != VERSION {
        return Err(format!("its version {version} is not known to this agent: upgrade it"));
    }
    if files.len() > VARIABLES.len() + MOST_TPM_FILES {
        return Err("it has too many files".to_owned());
    }
    let mut found = Files::new();
    for PackedFile { name, data } in files {
        let most = match VARIABLES.contains(&name.as_str()) {
            true => MOST_VARIABLES,
            false if name.strip_prefix(TPM).is_some_and(is_tpm_file) => MOST_TPM_FILE,
            false => return Err(format!("it has a file {name:?}, which is none of the firmware or the TPM")),
        };
        let data = STANDARD.decode(data).map_err(|_| format!("file {name} is no base64"))?;
        let mut bytes = Vec::new();
        let decoder = DeflateDecoder::new(data.as_slice());
        let read = decoder.take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("file {name} cannot be decompressed: {error}"))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
            return Err(format!("file {name} is larger than {} MiB", most >> 20));
        }
        found.insert(name, bytes);
    }
    Ok(found)
}

/// Puts exactly these files in the place of all that the instance has. They are on disk when this returns.
fn install(folder: &Path, tpm: &Path, new: &Files) -> Result<()> {
    files::ensure_folder(folder)?;
    for name in VARIABLES {
        let path = folder.join(name);
        match new.get(name) {
            Some(bytes) => files::write_atomic(&path, bytes, 0o600)?,
            None => files::remove_if_there(&path).map_err(failed("remove", &path))?,
        }
    }
    let incoming = folder.join("tpm.new");
    remove_folder(&incoming)?;
    let of_tpm: Vec<(&str, &Vec<u8>)> =
        new.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(TPM)?, bytes))).collect();
    if !of_tpm.is_empty() {
        files::ensure_private_folder(&incoming)?;
    }
    for (name, bytes) in &of_tpm {
        files::write_atomic(&incoming.join(name), bytes, 0o600)?;
    }
    remove_folder(tpm)?;
    if !of_tpm.is_empty() {
        fs::rename(&incoming, tpm).map_err(failed("rename", &incoming))?;
    }
    files::sync_parent(tpm).map_err(failed("write the folder of", tpm))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn instance(folder: &Path, files: &[(&str, &[u8])]) {
        fs::create_dir_all(folder.join("tpm")).expect("a folder");
        for (name, bytes) in files {
            fs::write(folder.join(name), bytes).expect("written");
        }
    }

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let files = files
            .iter()
            .map(|(name, data)| PackedFile { name: (*name).to_owned(), data: (*data).to_owned() })
            .collect();
        serde_json::to_vec(&PackedState { version: VERSION, files }).expect("JSON")
    }

    #[test]
    fn the_state_of_one_host_takes_the_place_of_all_that_another_has() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let variables = vec![0xff_u8; 540 << 10];
        let files: [(&str, &[u8]); 4] = [
            ("vars.fd", &variables),
            ("tpm/tpm2-00.permall", b"keys"),
            ("tpm/.lock", b""),
            ("journal.json", b"{}"),
        ];
        instance(from.path(), &files);
        let found = read(from.path(), &from.path().join("tpm")).expect("read");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["tpm/tpm2-00.permall", "vars.fd"]);
        let packed = pack(&found).expect("packed");
        assert!(packed.len() < 8 << 10, "{} bytes", packed.len());
        assert_eq!(pack(&found).expect("packed"), packed, "the same bytes for the same files");

        instance(to.path(), &[("vars-own-keys.fd", b"old"), ("tpm/tpm2-01.permall", b"old")]);
        let tpm = to.path().join("tpm");
        let unpacked = unpack(&packed).expect("an archive");
        for _ in 0..2 {
            install(to.path(), &tpm, &unpacked).expect("installed");
            assert_eq!(read(to.path(), &tpm).expect("read"), found);
            assert_eq!(files::names(to.path()).expect("listed"), ["tpm", "vars.fd"]);
        }
        install(to.path(), &tpm, &unpack(b"").expect("nothing")).expect("installed");
        assert!(read(to.path(), &tpm).expect("read").is_empty() && !tpm.exists());
    }

    #[test]
    fn an_archive_with_other_files_or_of_another_size_is_refused() {
        for name in ["journal.json", "../vars.fd", "tpm/../x", "tpm/.lock", "tpm/", "/etc/passwd"] {
            let refused = unpack(&archive(&[(name, "")])).expect_err(name);
            assert!(refused.contains("none of the firmware"), "{refused}");
        }
        assert!(unpack(&archive(&[("vars.fd", "!")])).expect_err("text").contains("base64"));
        assert!(unpack(&vec![b' '; MAX_FIRMWARE_ARCHIVE + 1]).expect_err("long").contains("16 MiB"));
        assert!(unpack(b"{").expect_err("no JSON").contains("no archive"));
        let newer = serde_json::to_vec(&PackedState { version: 2, files: Vec::new() }).expect("JSON");
        assert!(unpack(&newer).expect_err("newer").contains("upgrade"));
        let mut bomb = DeflateEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0; 1 << 20];
        (0..65).for_each(|_| bomb.write_all(&zeros).expect("compressed"));
        let bomb = STANDARD.encode(bomb.finish().expect("compressed"));
        for (name, most) in [("vars.fd", "64 MiB"), ("tpm/tpm2-00.permall", "4 MiB")] {
            let refused = unpack(&archive(&[(name, &bomb)])).expect_err(name);
            assert!(refused.contains(most), "{refused}");
        }
    }

    #[test]
    fn a_large_file_of_a_tpm_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        instance(folder.path(), &[("tpm/tpm2-00.permall", b"keys")]);
        let tpm = folder.path().join("tpm");
        assert!(read(folder.path(), &tpm).is_ok());
        let file = fs::File::create(tpm.join("tpm2-00.permall")).expect("made");
        file.set_len(MOST_TPM_FILE + 1).expect("as swtpm could");
        assert!(read(folder.path(), &tpm).is_err());
    }

    #[test]
    fn a_link_in_the_folder_of_a_tpm_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        instance(folder.path(), &[("secret", b"of the host")]);
        symlink(folder.path().join("secret"), folder.path().join("tpm/tpm2-00.permall")).expect("a link");
        assert!(read(folder.path(), &folder.path().join("tpm")).is_err());
    }
}
