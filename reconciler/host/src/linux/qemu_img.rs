//! `qemu-img`, and the files as it gets them, confined: by name, and by paths of their own.

use std::fs;
use std::path::{Path, PathBuf};

use berth_qemu::machine::Backing;
use berth_qemu::process::{RunAs, TOOL_KEY};
use serde_json::{Value, json};

use super::files::{self, failed};
use super::layout::Layout;
use super::program::Program;
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

pub(super) const QEMU_IMG: Program = Program {
    name: "qemu-img",
    advice: "it converts images (Debian, Ubuntu: apt install qemu-utils; Fedora: dnf install qemu-img)",
};

/// A disk as QEMU's programs open it, without names from the headers of files.
#[derive(Clone, Debug)]
pub(super) struct DiskNode {
    /// The block node.
    pub(super) node: Value,
    /// The files that a program opens for it, to read them.
    pub(super) files: Vec<PathBuf>,
}

/// The memory of `qemu-img`: up to 64 threads have stacks of 8 MiB.
pub(super) const CONVERT_MEMORY: u64 = 2 << 30;

/// Returns the chain as QEMU's block nodes, with this locking of the files: no name is read from the headers of the files.
pub(super) fn block_node(chain: &Backing, locking: &str) -> Value {
    let file = json!({"driver": "file", "filename": text(&chain.file), "locking": locking});
    if !chain.format.is_qcow2() {
        return json!({"driver": "raw", "file": file});
    }
    let below = chain.backing.as_deref().map(|below| block_node(below, locking));
    let mut node = json!({"driver": "qcow2", "file": file, "backing": below});
    if chain.format.is_encrypted() {
        node["encrypt"] = encrypt();
    }
    node
}

/// The options of an encrypted file, of which the program has the key.
pub(super) fn encrypt() -> Value {
    json!({"format": "luks", "key-secret": TOOL_KEY})
}

/// The object by which a program reads its key from its standard input.
pub(super) fn secret_on_stdin() -> String {
    format!("secret,id={TOOL_KEY},file=/dev/stdin")
}

/// Returns the files of a chain, the uppermost first.
pub(super) fn paths(chain: &Backing) -> Vec<PathBuf> {
    let mut paths = vec![chain.file.clone()];
    paths.extend(chain.backing.as_deref().map(self::paths).unwrap_or_default());
    paths
}

/// Gives the user a path to the files: hard links to the snapshots, in a folder that only this user can traverse. The image at the
/// bottom is in a folder that it can traverse.
pub(super) fn linked(layout: &Layout, links: &Path, chain: &Backing, user: &RunAs) -> Result<Backing> {
    let below = chain.backing.as_deref().map(|below| linked(layout, links, below, user)).transpose()?;
    let file = if chain.file.starts_with(layout.images()) {
        files::freeze(&chain.file)?;
        chain.file.clone()
    } else {
        files::ensure_folder_for(links, Some(user))?;
        let link = links.join(chain.file.file_name().unwrap_or_default());
        files::remove_if_there(&link).map_err(failed("remove", &link))?;
        fs::hard_link(&chain.file, &link).map_err(failed("link", &link))?;
        link
    };
    Ok(Backing { file, format: chain.format, backing: below.map(Box::new) })
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The end of what `qemu-img -p` prints: `    (12.34/100%)`, each time over the one before.
const OF_ALL: &str = "/100%)";
/// More than a number before that.
const MOST_BEFORE: usize = 64;

/// A part of the work of a program, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(u64);

impl Part {
    const WHOLE: u64 = 10_000;

    fn parse(percent: &str) -> Option<Self> {
        let (whole, part) = percent.trim().split_once('.')?;
        let (whole, part) = (whole.parse::<u64>().ok()?, part.get(..2)?.parse::<u64>().ok()?);
        Some(Self(whole.checked_mul(100)?.checked_add(part)?.min(Self::WHOLE)))
    }

    /// Returns that part of a number of bytes.
    pub(super) fn of(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.0) / u128::from(Self::WHOLE);
        u64::try_from(part).unwrap_or(bytes)
    }
}

/// Reads the progress that `qemu-img -p` prints.
#[derive(Debug, Default)]
pub(super) struct PrintedProgress {
    /// The output after the last number.
    rest: String,
}

impl PrintedProgress {
    /// Returns the last number of the output, if another one has come.
    pub(super) fn read(&mut self, output: &[u8]) -> Option<Part> {
        self.rest.push_str(&String::from_utf8_lossy(output));
        let Some(end) = self.rest.rfind(OF_ALL) else {
            if self.rest.len() > MOST_BEFORE {
                self.rest.clear();
            }
            return None;
        };
        let part = self.rest[..end].rsplit('(').next().and_then(Part::parse);
        self.rest.drain(..end + OF_ALL.len());
        part
    }
}

/// The error of a program that found no space for this file.
pub(super) fn no_space(file: &Path) -> SystemError {
    let free = files::space(file.parent().unwrap_or(Path::new("/"))).map_or(0, |space| space.free);
    SystemError::NoSpace { what: text(file), needed: 0, free }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_progress_is_read_from_pieces_of_the_output() {
        let mut printed = PrintedProgress::default();
        let mut read = |output: &str| printed.read(output.as_bytes()).map(|part| part.of(1 << 30));
        assert_eq!(read("    (0.00/100%)\r"), Some(0));
        assert_eq!(read("    (1.25/100%)\r    (50.00/10"), Some((1 << 30) / 80));
        assert_eq!(read("0%)\r"), Some(1 << 29));
        assert_eq!(read(&"x".repeat(1000)), None);
        assert_eq!(read("    (100.00/100%)\n"), Some(1 << 30));
        assert_eq!(read("(all/100%)"), None);
        assert_eq!(Part(10_000).of(u64::MAX), u64::MAX);
    }
}
