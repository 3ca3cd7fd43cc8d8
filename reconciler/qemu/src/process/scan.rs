//! Finds every QEMU process on the machine, including foreign ones.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ProcessError, identity};
use crate::hypervisor::FoundQemu;
use crate::machine::{instance_of, name_of};

/// Longer command lines are truncated.
const MAX_CMDLINE: u64 = 1 << 20;

/// Lists all QEMU processes that are alive. [`FoundQemu::instance`] is only a claim: the caller verifies it by
/// [`FoundQemu::uid`].
pub fn list_qemu() -> Result<Vec<FoundQemu>, ProcessError> {
    let proc = Path::new("/proc");
    let entries =
        std::fs::read_dir(proc).map_err(|source| ProcessError::Read { path: proc.to_owned(), source })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let directory = entry.path();
        let Some(argv) = argv(&directory)? else { continue };
        // Both are read before the identity: if the pid is reused in between, the next scan detects it.
        let Ok(metadata) = std::fs::metadata(&directory) else { continue };
        let Some(identity) = identity::of(pid)? else { continue };
        found.push(FoundQemu {
            identity,
            uid: metadata.uid(),
            instance: instance_of(&argv).map(str::to_owned),
            name: name_of(&argv),
            argv,
        });
    }
    Ok(found)
}

/// Returns None if the process is not QEMU, or has ended.
fn argv(directory: &Path) -> Result<Option<Vec<String>>, ProcessError> {
    let path: PathBuf = directory.join("cmdline");
    let mut bytes = Vec::new();
    let read = std::fs::File::open(&path).and_then(|f| f.take(MAX_CMDLINE).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if identity::is_gone(&error) || error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        Err(source) => return Err(ProcessError::Read { path, source }),
    }
    let text = String::from_utf8_lossy(&bytes);
    let argv: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    Ok(argv.first().is_some_and(|program| is_qemu(program)).then_some(argv))
}

fn is_qemu(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}
