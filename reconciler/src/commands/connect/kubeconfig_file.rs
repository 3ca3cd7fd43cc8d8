//! The file of a kubeconfig that a user names: whatever it is, it is read within limits or refused.

use std::{
    fs::{self, FileType},
    os::unix::fs::FileTypeExt,
    path::Path,
};

use anyhow::{Context, ensure};
use kube::config::Kubeconfig;

use super::super::small_file;

/// The greatest length in bytes. One of a hundred clusters with their certificates has less than a tenth of it.
const LIMIT: u64 = 16 << 20;

/// Reads a kubeconfig from a file, or from a pipe as `<(command)` of a shell is one.
///
/// *Errors:* it cannot be read, is too long, or has no end; it is no kubeconfig.
pub(super) fn read(path: &Path) -> anyhow::Result<Kubeconfig> {
    let reading = || format!("reading kubeconfig {}", path.display());
    if kind_of(path).with_context(reading)?.is_fifo() {
        return Kubeconfig::from_yaml(&small_file::read(path, LIMIT)?).with_context(reading);
    }
    Kubeconfig::read_from(path).with_context(reading)
}

/// Returns the kind of the file, which is a regular one or a pipe.
///
/// *Errors:* it is neither a pipe nor a file of a kubeconfig's length: kube would read a device without an end.
pub(super) fn kind_of(path: &Path) -> anyhow::Result<FileType> {
    let found = fs::metadata(path)?;
    let kind = found.file_type();
    ensure!(!kind.is_dir(), "it is a directory: name the file in it");
    ensure!(kind.is_file() || kind.is_fifo(), "it is neither a file nor a pipe");
    ensure!(found.len() <= LIMIT, "it has more than {} MiB, and is no kubeconfig", LIMIT >> 20);
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, OpenOptions},
        io::Write,
        thread,
    };

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: here\n";

    fn refused(path: &Path) -> String {
        format!("{:#}", read(path).expect_err("refused"))
    }

    #[test]
    fn a_file_without_an_end_or_of_another_kind_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(refused(Path::new("/dev/zero")).ends_with("it is neither a file nor a pipe"));
        let of_folder = refused(folder.path());
        assert!(of_folder.contains("it is a directory"), "{of_folder}");
        let path = folder.path().join("config");
        File::create(&path).and_then(|file| file.set_len(LIMIT + 1)).expect("a file");
        assert!(refused(&path).contains("more than 16 MiB"));
        assert!(refused(&folder.path().join("none")).starts_with("reading kubeconfig "));
        fs::write(&path, TEXT).expect("written");
        assert_eq!(read(&path).expect("a kubeconfig").current_context.as_deref(), Some("here"));
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let writer = {
            let path = path.clone();
            thread::spawn(move || {
                let mut pipe = OpenOptions::new().write(true).open(path)?;
                pipe.write_all(TEXT.as_bytes())
            })
        };
        assert_eq!(read(&path).expect("a kubeconfig").current_context.as_deref(), Some("here"));
        writer.join().expect("it ends").expect("it is read");
    }
}
