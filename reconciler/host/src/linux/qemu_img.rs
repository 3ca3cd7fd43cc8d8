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

/// The error of a program that found no space for this file.
pub(super) fn no_space(file: &Path) -> SystemError {
    let free = files::space(file.parent().unwrap_or(Path::new("/"))).map_or(0, |space| space.free);
    SystemError::NoSpace { what: text(file), needed: 0, free }
}
