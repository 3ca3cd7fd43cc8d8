//! Where everything is below the state directory, and which names may become file names. Pure.

use std::path::{Path, PathBuf};

use crate::system::SystemError;

/// Paths below the state directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(super) fn image(&self, sha256: &str) -> PathBuf {
        self.images().join(sha256)
    }

    pub(super) fn pools(&self) -> PathBuf {
        self.root.join("pools")
    }

    pub(super) fn volumes(&self, pool: &str) -> PathBuf {
        self.pools().join(pool).join("volumes")
    }

    pub(super) fn trash(&self, pool: &str) -> PathBuf {
        self.pools().join(pool).join("trash")
    }

    pub(super) fn instances(&self) -> PathBuf {
        self.root.join("instances")
    }

    pub(super) fn instance(&self, instance: &str) -> PathBuf {
        self.instances().join(instance)
    }

    pub(super) fn networks(&self) -> PathBuf {
        self.root.join("network")
    }

    pub(super) fn network(&self, bridge: &str) -> PathBuf {
        self.networks().join(bridge)
    }
}

/// A checksum becomes a file name: exactly 64 lower-case hexadecimal digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

pub(super) fn check_sha256(text: &str) -> Result<(), SystemError> {
    check("checksum", text, is_sha256(text), "64 lower-case hexadecimal digits")
}

/// Volume ids, instance ids and pool names: no slash, no leading dot or dash, nothing to escape anywhere.
pub(super) fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

pub(super) fn check_name(what: &'static str, text: &str) -> Result<(), SystemError> {
    check(what, text, is_name(text), "1 to 63 lower-case letters, digits and '-', not first '-'")
}

/// The kernel's limit for interface names is 15 characters; ours are told from others by their first ones.
pub(super) fn check_link(what: &'static str, name: &str, prefix: &str) -> Result<(), SystemError> {
    let ok = is_name(name) && name.len() <= 15 && name.starts_with(prefix);
    check(what, name, ok, "at most 15 characters, with berth's prefix")
}

fn check(what: &'static str, value: &str, ok: bool, why: &'static str) -> Result<(), SystemError> {
    if ok { Ok(()) } else { Err(SystemError::Invalid { what, value: value.to_owned(), why }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_leaves_its_folder_is_a_name() {
        for bad in ["", ".", "..", "a/b", "../x", "-a", "A", "a b", "a\0", &"a".repeat(64)] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_name("v-0123456789abcdef"));
        assert!(!is_sha256(&"A".repeat(64)));
        assert!(is_sha256(&"a0".repeat(32)));
        assert!(check_link("bridge", "eth0", "bth-").is_err());
        assert!(check_link("bridge", "bth-0123456789ab", "bth-").is_err(), "16 characters");
    }
}
