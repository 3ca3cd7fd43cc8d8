//! Finds every process of a program on the machine, including foreign ones.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ProcessError, ProcessIdentity, identity};
use crate::hypervisor::FoundQemu;
use crate::machine::{instance_of, name_of};

/// Longer command lines are truncated.
const MAX_CMDLINE: u64 = 1 << 20;
/// The size in bytes of most command lines, which are then read at once: for each read the kernel looks into the other process.
const USUAL_CMDLINE: usize = 8 << 10;

/// Lists all QEMU processes that are alive. [`FoundQemu::instance`] is only a claim: the caller verifies it by
/// [`FoundQemu::uid`].
pub fn list_qemu() -> Result<Vec<FoundQemu>, ProcessError> {
    seen_qemus()?.iter().filter_map(|seen| seen.found().transpose()).collect()
}

/// Lists all QEMU processes that are alive, without what is read of each besides its command line: with a hundred of them that is most of
/// the work, and the search for one needs it of one.
pub(super) fn seen_qemus() -> Result<Vec<SeenQemu>, ProcessError> {
    let seen = seen(is_qemu)?.into_iter();
    Ok(seen.map(|of| SeenQemu { instance: instance_of(&of.argv).map(str::to_owned), of }).collect())
}

/// A QEMU process that is alive. Its instance is only a claim.
#[derive(Debug)]
pub(super) struct SeenQemu {
    pub(super) instance: Option<String>,
    of: Seen,
}

impl SeenQemu {
    pub(super) fn uid(&self) -> u32 {
        self.of.uid
    }

    /// Reads its identity. None: it has ended.
    pub(super) fn identity(&self) -> Result<Option<ProcessIdentity>, ProcessError> {
        identity::of(self.of.pid)
    }

    /// Returns all that is known of it. None: it has ended.
    pub(super) fn found(&self) -> Result<Option<FoundQemu>, ProcessError> {
        let Some(identity) = self.identity()? else { return Ok(None) };
        let Seen { uid, argv, .. } = &self.of;
        let (instance, name) = (self.instance.clone(), name_of(argv));
        Ok(Some(FoundQemu { identity, uid: *uid, instance, name, argv: argv.clone() }))
    }
}

/// A process that is alive. Its arguments are only a claim.
pub(super) struct Program {
    pub(super) identity: ProcessIdentity,
    pub(super) uid: u32,
    pub(super) argv: Vec<String>,
}

/// A process of which the start time has not been read.
#[derive(Debug)]
struct Seen {
    pid: i32,
    uid: u32,
    argv: Vec<String>,
}

/// Lists the processes of programs with such a file name.
pub(super) fn programs(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Program>, ProcessError> {
    let mut found = Vec::new();
    for Seen { pid, uid, argv } in seen(is_wanted)? {
        let Some(identity) = identity::of(pid)? else { continue };
        found.push(Program { identity, uid, argv });
    }
    Ok(found)
}

fn seen(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Seen>, ProcessError> {
    let proc = Path::new("/proc");
    let entries =
        std::fs::read_dir(proc).map_err(|source| ProcessError::Read { path: proc.to_owned(), source })?;
    let (mut found, mut cmdline) = (Vec::new(), Vec::with_capacity(USUAL_CMDLINE));
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let directory = entry.path();
        let Some(argv) = argv(&directory, &is_wanted, &mut cmdline)? else { continue };
        // Both are read before the identity: if the pid is reused in between, the next scan detects it.
        let Ok(metadata) = std::fs::metadata(&directory) else { continue };
        found.push(Seen { pid, uid: metadata.uid(), argv });
    }
    Ok(found)
}

/// Returns None if it is another program, or has ended. `bytes` is space for the command line.
fn argv(
    directory: &Path,
    is_wanted: impl Fn(&str) -> bool,
    bytes: &mut Vec<u8>,
) -> Result<Option<Vec<String>>, ProcessError> {
    let path: PathBuf = directory.join("cmdline");
    bytes.clear();
    let read = std::fs::File::open(&path).and_then(|f| f.take(MAX_CMDLINE).read_to_end(bytes));
    match read {
        Ok(_) => {}
        Err(error) if identity::is_gone(&error) || error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        Err(source) => return Err(ProcessError::Read { path, source }),
    }
    Ok(arguments(bytes, is_wanted))
}

/// Returns the arguments in a command line; None if it is that of another program, as most are.
fn arguments(cmdline: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let program = String::from_utf8_lossy(cmdline.split(|byte| *byte == 0).next()?);
    let name = program.rsplit('/').next().unwrap_or(&program);
    let text = is_wanted(name).then(|| String::from_utf8_lossy(cmdline))?;
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

fn is_qemu(name: &str) -> bool {
    name.starts_with("qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_other_programs_are_left_out() {
        let of = |cmdline: &[u8]| arguments(cmdline, is_qemu);
        let found = of(b"/usr/bin/qemu-system-x86_64\0-name\0a b\0\0-S\0").unwrap();
        assert_eq!(found, ["/usr/bin/qemu-system-x86_64", "-name", "a b", "", "-S"]);
        assert_eq!(of(b"kvm").unwrap(), ["kvm"]);
        for other in [&b""[..], b"\0", b"/bin/cat\0/usr/bin/qemu-system-x86_64\0", b"\xff/qemu\0"] {
            assert_eq!(of(other), None);
        }
    }

    #[test]
    fn this_process_is_found_whatever_was_read_before_it() {
        let mut bytes = b"more than its own".repeat(1000);
        let own = argv(Path::new("/proc/self"), |_| true, &mut bytes).unwrap().unwrap();
        assert_eq!(own, std::env::args().collect::<Vec<_>>());
    }
}
