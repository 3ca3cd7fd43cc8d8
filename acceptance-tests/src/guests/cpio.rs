//! An initramfs archive (`newc`), as the kernel reads it. Independent of its content.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_777;

/// An archive being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and its parents.
    pub fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        self.folders.insert(path.to_owned());
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a file with these permissions.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        if let Some((parent, _)) = path.trim_matches('/').rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(path.trim_matches('/'), FILE | mode, content);
    }

    /// Adds a copy of a file on this machine.
    pub fn copy(&mut self, path: &str, mode: u32, from: &Path) -> Result<()> {
        self.file(path, mode, &fs::read(from)?);
        Ok(())
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        if let Some((parent, _)) = path.trim_matches('/').rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(path.trim_matches('/'), SYMLINK, target.as_bytes());
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name_size = name.len() + 1;
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields =
            [self.entries as usize, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_aligned_and_folders_come_before_their_files() {
        let mut archive = Archive::new();
        archive.file("/etc/acpi/PWRF", 0o755, b"#!/bin/sh");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let places: Vec<usize> = ["etc\0", "etc/acpi\0", "etc/acpi/PWRF\0", "TRAILER!!!\0"]
            .iter()
            .map(|name| text.find(name).expect("the entry is there"))
            .collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 4);
    }
}
