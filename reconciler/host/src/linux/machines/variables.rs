//! The UEFI firmware of a machine, and the file of its variables.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use berth_qemu::efi_variables::{self, SecureBootKeys};
use berth_qemu::installation::{Installation, UefiFirmware};
use berth_qemu::machine::{Architecture, Firmware};
use berth_qemu::process::RunAs;

use super::super::files::{self, failed};
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

/// The keys of Secure Boot in a machine's variables.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    /// Those of the firmware's template, if it has some.
    OfTemplate,
    /// Keys to enroll. None: they were enrolled before.
    Own(Option<SecureBootKeys>),
}

impl Keys {
    /// Returns the keys of a machine with this firmware.
    pub(super) fn of(firmware: Firmware, keys: Option<SecureBootKeys>) -> Self {
        match firmware {
            Firmware::Bios | Firmware::Uefi | Firmware::UefiSecureBoot => Self::OfTemplate,
            Firmware::UefiOwnKeys => Self::Own(keys),
        }
    }
}

/// Returns the UEFI firmware of a machine. None: it starts with a BIOS.
pub(super) fn firmware(qemu: &Installation, firmware: Firmware) -> Result<Option<&UefiFirmware>> {
    match firmware {
        Firmware::Bios => Ok(None),
        Firmware::Uefi => uefi(qemu).map(Some),
        Firmware::UefiSecureBoot | Firmware::UefiOwnKeys => secure_boot(qemu).map(Some),
    }
}

/// Returns the name of the file of variables. With Secure Boot they contain keys: each firmware has its own.
pub(super) fn file_name(firmware: Firmware) -> &'static str {
    match firmware {
        Firmware::Bios | Firmware::Uefi => "vars.fd",
        Firmware::UefiSecureBoot => "vars-secure-boot.fd",
        Firmware::UefiOwnKeys => "vars-own-keys.fd",
    }
}

/// Returns UEFI firmware, preferably without Secure Boot: guests are arbitrary images.
fn uefi(qemu: &Installation) -> Result<&UefiFirmware> {
    let firmware = qemu.uefi.iter().find(|f| !f.secure_boot).or(qemu.uefi.first());
    firmware.ok_or(SystemError::ProgramMissing {
        program: "UEFI firmware",
        advice: match qemu.architecture {
            Architecture::X86_64 => {
                "VMs with firmware UEFI need it (Debian, Ubuntu: apt install ovmf; Fedora: dnf install edk2-ovmf)"
            }
            Architecture::Aarch64 => {
                "VMs of aarch64 need it (Debian, Ubuntu: apt install qemu-efi-aarch64; Fedora: dnf install edk2-aarch64)"
            }
        },
    })
}

/// Returns UEFI firmware with Secure Boot, whose variables contain the keys.
fn secure_boot(qemu: &Installation) -> Result<&UefiFirmware> {
    qemu.uefi.iter().find(|f| f.secure_boot).ok_or(SystemError::ProgramMissing {
        program: "UEFI firmware with Secure Boot",
        advice: "VMs with firmware UEFISecureBoot need it (Debian, Ubuntu: apt install ovmf; Fedora: dnf install edk2-ovmf)",
    })
}

/// Makes the file of variables, or enrolls keys in it. Boot entries that the guest wrote persist over restarts.
pub(super) fn ensure(vars: &Path, template: &Path, keys: &Keys, owner: Option<&RunAs>) -> Result<()> {
    let exists = vars.try_exists().map_err(failed("look for", vars))?;
    let bytes = match keys {
        Keys::OfTemplate if !exists => Some(fs::read(template).map_err(failed("read", template))?),
        Keys::Own(Some(keys)) => Some(enrolled(vars, exists, template, keys)?),
        Keys::Own(None) if !exists => {
            let attempt =
                "find the variables with enrolled keys, which another token of secureBootKeys makes anew:";
            return Err(failed(attempt, vars)(io::ErrorKind::NotFound.into()));
        }
        Keys::OfTemplate | Keys::Own(None) => None,
    };
    if let Some(bytes) = bytes {
        files::write_atomic(vars, &bytes, 0o600)?;
    }
    files::give(vars, owner)
}

fn enrolled(vars: &Path, exists: bool, template: &Path, keys: &SecureBootKeys) -> Result<Vec<u8>> {
    let empty = read(template)?;
    let present = if exists { Some(read(vars)?) } else { None };
    let enrolled = efi_variables::enroll(&empty, present.as_deref(), keys).map_err(|error| {
        let source = io::Error::new(io::ErrorKind::InvalidData, error);
        failed("enroll keys of Secure Boot in a copy of", template)(source)
    })?;
    let file = vars.display();
    match (exists, enrolled.kept) {
        (true, false) => tracing::warn!(%file, "variables cannot be read and are made anew"),
        _ => tracing::info!(%file, "keys of Secure Boot enrolled"),
    }
    Ok(enrolled.bytes)
}

/// Reads a file of variables, of which QEMU may have made a large one.
fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(failed("read", path))?;
    let most = u64::try_from(efi_variables::MOST_FILE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_from_the_template_once_and_enrolled_keys_must_be_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (template, vars) = (folder.path().join("template.fd"), folder.path().join("vars.fd"));
        fs::write(&template, b"template").expect("written");
        ensure(&vars, &template, &Keys::OfTemplate, None).expect("a copy");
        fs::write(&vars, b"of the guest").expect("written");
        for keys in [Keys::OfTemplate, Keys::Own(None)] {
            ensure(&vars, &template, &keys, None).expect("kept");
        }
        assert_eq!(fs::read(&vars).expect("there"), b"of the guest");
        let missing = ensure(&folder.path().join("other.fd"), &template, &Keys::Own(None), None);
        assert!(missing.expect_err("it is missing").to_string().contains("another token"));
        let keys = Keys::Own(Some(SecureBootKeys::default()));
        let refused = ensure(&vars, &template, &keys, None).expect_err("the template is none");
        assert!(refused.to_string().contains("enroll keys of Secure Boot"), "{refused}");
        assert_eq!(fs::read(&vars).expect("there"), b"of the guest");
    }

    /// A file of variables as the firmware of Debian has it.
    #[test]
    fn keys_are_enrolled_in_the_variables_of_installed_firmware() {
        let template = Path::new("/usr/share/OVMF/OVMF_VARS_4M.ms.fd");
        let Ok(original) = fs::read(template) else {
            eprintln!("skipped: no firmware with Secure Boot is installed");
            return;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let vars = folder.path().join("vars.fd");
        let keys = |name: u8| SecureBootKeys {
            pk: vec![name; 900],
            kek: vec![vec![name; 901]],
            db: vec![vec![name; 902]],
            dbx: Vec::new(),
        };
        let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        ensure(&vars, template, &Keys::Own(Some(keys(0xa1))), None).expect("enrolled");
        let first = fs::read(&vars).expect("there");
        assert_eq!(first.len(), original.len());
        // Behind the variables are areas of the template.
        assert!(!contains(&first[..256 << 10], b"Microsoft") && contains(&first, &[0xa1; 902]));
        ensure(&vars, template, &Keys::Own(Some(keys(0xb2))), None).expect("enrolled again");
        let second = fs::read(&vars).expect("there");
        assert!(!contains(&second, &[0xa1; 16]) && contains(&second, &[0xb2; 902]));
    }
}
