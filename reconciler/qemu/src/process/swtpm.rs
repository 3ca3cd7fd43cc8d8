//! swtpm, the program that emulates the TPM of one machine: started before QEMU, as the same user and in the same cgroup.
//!
//! QEMU is its only client. It ends when QEMU's connection to it is closed, however QEMU ended. The memory of the TPM is in a
//! directory of the machine's, written at each change.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};

use super::landlock::{Reach, Ruleset};
use super::launch::{self, Cell};
use super::scan::programs;
use super::vfork::Child;
use super::{LaunchError, ProcessError, ProcessIdentity, RunAs, helper};
use crate::machine::TpmFiles;

/// The configuration of OpenSSL, which libtpms computes with.
const SETTINGS: [&str; 3] = ["/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies"];

/// Prepares the TPM's directory for this user. The user owns what is in it, and may have filled it with links.
pub(super) fn prepare(files: &TpmFiles, user: Option<RunAs>) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Prepare { path: files.state.clone(), source };
    std::fs::create_dir_all(&files.state).map_err(failed)?;
    std::fs::set_permissions(&files.state, PermissionsExt::from_mode(0o700)).map_err(failed)?;
    let Some(user) = user else { return Ok(()) };
    chown(&files.state, Some(user.uid), Some(user.gid)).map_err(failed)?;
    for entry in std::fs::read_dir(&files.state).map_err(failed)? {
        lchown(entry.map_err(failed)?.path(), Some(user.uid), Some(user.gid)).map_err(failed)?;
    }
    Ok(())
}

/// Allows what it opens beside the files of every program.
pub(super) fn allow(ruleset: &Ruleset, files: &TpmFiles) -> io::Result<()> {
    for path in SETTINGS {
        ruleset.allow(Path::new(path), Reach::Read)?;
    }
    ruleset.allow(&files.state, Reach::Own)
}

/// Starts it with a socket that accepts connections at once. Messages go to `stderr`.
pub(super) fn start(
    files: &TpmFiles,
    socket: &Path,
    stderr: File,
    cell: &Cell<'_>,
) -> Result<Child, LaunchError> {
    let listener = helper::listen(socket, cell.run_as)
        .map_err(|source| LaunchError::Prepare { path: socket.to_owned(), source })?;
    let control = format!("type=unixio,fd={}", listener.as_raw_fd());
    let args = ["socket", "--tpm2", "--terminate", "--tpmstate", &state(&files.state), "--ctrl", &control];
    launch::spawn(&files.program, &args.map(str::to_owned), stderr, &[listener], cell)
}

/// The argument that distinguishes it from every other swtpm.
fn state(directory: &Path) -> String {
    format!("dir={},mode=0600", directory.display())
}

/// Returns the swtpm of this directory, of the user that owns the directory.
fn find(directory: &Path) -> Result<Option<ProcessIdentity>, ProcessError> {
    let owner = match std::fs::metadata(directory) {
        Ok(metadata) => metadata.uid(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ProcessError::Read { path: directory.to_owned(), source }),
    };
    let argument = state(directory);
    let found = programs(|name| name == "swtpm")?;
    let ours = found.into_iter().find(|p| p.uid == owner && p.argv.contains(&argument));
    Ok(ours.map(|program| program.identity))
}

/// Ends the swtpm of this directory, if one runs.
pub(super) async fn end(directory: &Path) -> Result<(), ProcessError> {
    let directory: PathBuf = directory.to_owned();
    helper::end(move || Ok(find(&directory)?.into_iter().collect())).await
}
