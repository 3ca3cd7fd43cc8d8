//! The volumes with bootstrap data: small FAT file systems.
//!
//! ```text
//!  cidata     meta-data, user-data, network-config, vendor-data   cloud-init reads them at first boot (NoCloud)
//!  UNATTEND   Unattend.xml, Autounattend.xml                      Windows Setup and Sysprep look for them on removable volumes
//! ```
//!
//! Equal data gives equal bytes. Contains secrets: only QEMU's user can read it.

use std::io::{self, Cursor, Write};

use fatfs::{Date, DateTime, FileSystem, FormatVolumeOptions, FsOptions, Time, TimeProvider};

use crate::{Seed, SystemError};

const CLOUD_INIT: [u8; 11] = *b"cidata     ";
const SYSPREP: [u8; 11] = *b"UNATTEND   ";
/// The names of an answer file: for an installed system, and for an installation.
const ANSWER_FILES: [&str; 2] = ["Unattend.xml", "Autounattend.xml"];
/// A fixed random value: two volumes may share it, but if it changed, equal data would give different bytes.
const VOLUME_ID: u32 = 0xbe27_4001;
/// Larger user data is not plausible bootstrap data.
const MAX_BYTES: usize = 4 << 20;
/// Space for the tables, the directory and partly used clusters.
const SPARE: usize = 256 << 10;

/// Returns the volume for cloud-init as bytes.
pub(super) fn volume(seed: &Seed) -> Result<Vec<u8>, SystemError> {
    let mut files = vec![
        ("meta-data", seed.meta_data.as_str()),
        ("user-data", &seed.user_data),
        ("network-config", &seed.network_config),
    ];
    files.extend(seed.vendor_data.as_deref().map(|text| ("vendor-data", text)));
    fat(CLOUD_INIT, &files)
}

/// Returns the volume for Windows as bytes.
pub(super) fn sysprep_volume(unattend: &str) -> Result<Vec<u8>, SystemError> {
    fat(SYSPREP, &ANSWER_FILES.map(|name| (name, unattend)))
}

fn fat(label: [u8; 11], files: &[(&str, &str)]) -> Result<Vec<u8>, SystemError> {
    let bytes: usize = files.iter().map(|(_, text)| text.len()).sum();
    if bytes > MAX_BYTES {
        return Err(SystemError::Invalid {
            what: "bootstrap data",
            value: format!("{bytes} bytes"),
            why: "at most 4 MiB",
        });
    }
    let mut disk = vec![0; (bytes + SPARE).next_multiple_of(64 << 10)];
    write(&mut disk, label, files).map_err(|source| SystemError::File {
        attempt: "make the bootstrap volume in",
        path: "memory".into(),
        source,
    })?;
    Ok(disk)
}

fn write(disk: &mut [u8], label: [u8; 11], files: &[(&str, &str)]) -> io::Result<()> {
    let options = FormatVolumeOptions::new().volume_label(label).volume_id(VOLUME_ID);
    fatfs::format_volume(Cursor::new(&mut *disk), options)?;
    let filesystem = FileSystem::new(Cursor::new(disk), FsOptions::new().time_provider(&EPOCH))?;
    for (name, text) in files {
        let mut file = filesystem.root_dir().create_file(name)?;
        file.write_all(text.as_bytes())?;
        file.flush()?;
    }
    filesystem.unmount()
}

/// The earliest FAT timestamp: the bytes must not depend on the clock.
#[derive(Debug)]
struct Epoch;
static EPOCH: Epoch = Epoch;

impl TimeProvider for Epoch {
    fn get_current_date(&self) -> Date {
        Date { year: 1980, month: 1, day: 1 }
    }

    fn get_current_date_time(&self) -> DateTime {
        DateTime { date: self.get_current_date(), time: Time { hour: 0, min: 0, sec: 0, millis: 0 } }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn seed(user_data: &str) -> Seed {
        Seed {
            meta_data: "instance-id: i-0123456789ab\n".to_owned(),
            user_data: user_data.to_owned(),
            network_config: "version: 2\n".to_owned(),
            ..Seed::default()
        }
    }

    #[test]
    fn a_guest_finds_its_data_on_a_volume_labelled_cidata() {
        let bytes = volume(&seed("#cloud-config\n")).expect("small data");
        let filesystem = FileSystem::new(Cursor::new(bytes), FsOptions::new()).expect("a FAT file system");
        assert_eq!(filesystem.volume_label(), "cidata");
        let label = filesystem.read_volume_label_from_root_dir().expect("readable");
        assert_eq!(label.as_deref(), Some("cidata"), "blkid prefers the one in the root folder");
        assert_eq!(read(&filesystem, "user-data").as_deref(), Some("#cloud-config\n"));
        assert_eq!(read(&filesystem, "vendor-data"), None);
        let bytes = volume(&Seed { vendor_data: Some("#cloud-config\n".to_owned()), ..seed("") })
            .expect("small data");
        let filesystem = FileSystem::new(Cursor::new(bytes), FsOptions::new()).expect("a FAT file system");
        assert_eq!(read(&filesystem, "vendor-data").as_deref(), Some("#cloud-config\n"));
    }

    fn read(filesystem: &FileSystem<Cursor<Vec<u8>>>, name: &str) -> Option<String> {
        let mut text = String::new();
        filesystem.root_dir().open_file(name).ok()?.read_to_string(&mut text).expect("UTF-8");
        Some(text)
    }

    #[test]
    fn windows_finds_its_answer_file_under_both_names() {
        let filesystem = FileSystem::new(
            Cursor::new(sysprep_volume("<unattend/>").expect("small data")),
            FsOptions::new(),
        );
        let filesystem = filesystem.expect("a FAT file system");
        assert_eq!(filesystem.volume_label(), "UNATTEND");
        for name in ["Unattend.xml", "Autounattend.xml", "UNATTEND.XML"] {
            assert_eq!(read(&filesystem, name).as_deref(), Some("<unattend/>"), "{name}");
        }
    }

    #[test]
    fn equal_data_gives_equal_bytes() {
        let large = "x".repeat(3 << 20);
        assert!(volume(&seed(&large)).expect("fits") == volume(&seed(&large)).expect("fits"));
        assert!(volume(&seed(&large)).expect("fits") != volume(&seed("")).expect("fits"));
    }

    #[test]
    fn data_too_large_for_bootstrap_is_refused() {
        let error = volume(&seed(&"x".repeat(5 << 20))).expect_err("too large");
        assert_eq!(error.variant(), "Invalid");
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret = || Some("password: hunter2".to_owned());
        let seed = Seed { unattend: secret(), vendor_data: secret(), ..seed("password: hunter2") };
        assert!(!format!("{seed:?}").contains("hunter2"));
    }
}
