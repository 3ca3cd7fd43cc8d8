//! Finds every process of a program on the machine, including foreign ones.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ProcessError, ProcessIdentity, identity};
use crate::hypervisor::FoundQemu;
use crate::machine::{instance_of, name_of};

/// Longer command lines are truncated.
const MAX_CMDLINE: u64 = 1 << 20;

/// Lists all QEMU processes that are alive. [`FoundQemu::instance`] is only a claim: the caller verifies it by
/// [`FoundQemu::uid`].
pub fn list_qemu() -> Result<Vec<FoundQemu>, ProcessError> {
    let found = programs(is_qemu)?.into_iter().map(|Program { identity, uid, argv }| FoundQemu {
        identity,
        uid,
        instance: instance_of(&argv).map(str::to_owned),
        name: name_of(&argv),
        argv,
    });
    Ok(found.collect())
}

/// A process that is alive. Its arguments are only a claim.
pub(super) struct Program {
    pub(super) identity: ProcessIdentity,
    pub(super) uid: u32,
    pub(super) argv: Vec<String>,
}

/// Lists the processes of programs with such a file name.
pub(super) fn programs(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Program>, ProcessError> {
    let proc = Path::new("/proc");
    let entries =
        std::fs::read_dir(proc).map_err(|source| ProcessError::Read { path: proc.to_owned(), source })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let directory = entry.path();
        let Some(argv) = argv(&directory, &is_wanted)? else { continue };
        // Both are read before the identity: if the pid is reused in between, the next scan detects it.
        let Ok(metadata) = std::fs::metadata(&directory) else { continue };
        let Some(identity) = identity::of(pid)? else { continue };
        found.push(Program { identity, uid: metadata.uid(), argv });
    }
    Ok(found)
}

/// Returns None if it is another program, or has ended.
fn argv(directory: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Option<Vec<String>>, ProcessError> {
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
    let name = argv.first().map(|program| program.rsplit('/').next().unwrap_or(program));
    Ok(name.is_some_and(is_wanted).then_some(argv))
}

fn is_qemu(name: &str) -> bool {
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}
