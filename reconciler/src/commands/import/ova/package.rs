//! The files of an appliance: the members of a tar archive, or files beside a descriptor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use nix::fcntl::OFlag;

use crate::import::ovf::{Member, members};

/// An appliance.
pub(super) struct Package {
    files: Files,
    descriptor: String,
    manifest: Option<String>,
    has_certificate: bool,
}

enum Files {
    Archive { file: Arc<File>, members: Vec<Member> },
    Folder(PathBuf),
}

/// A file of an appliance, which is read once.
pub(super) struct StoredFile {
    name: String,
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl StoredFile {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The bytes that are left of it.
    pub(super) fn size(&self) -> u64 {
        self.end - self.at
    }
}

impl Read for StoredFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.size()).unwrap_or(usize::MAX).min(buffer.len());
        // Members share a file: it has no position.
        let read = self.file.read_at(buffer.get_mut(..most).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Package {
    /// Opens an OVA, or a descriptor with the files beside it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ovf")) {
            return Self::of_descriptor(path);
        }
        let mut file = regular(path, OFlag::empty())?;
        let members = members(&mut file)?;
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        let Some(descriptor) = only(&names, ".ovf")? else {
            if let Some(inner) = names.iter().find(|name| has_ending(name, ".ovf")) {
                bail!("its descriptor {inner:?} is in a folder: extract the archive, and give the .ovf");
            }
            bail!("it has no descriptor: no file *.ovf");
        };
        let manifest = only(&names, ".mf")?;
        let has_certificate = only(&names, ".cert")?.is_some();
        let files = Files::Archive { file: Arc::new(file), members };
        Ok(Self { files, descriptor, manifest, has_certificate })
    }

    fn of_descriptor(path: &Path) -> anyhow::Result<Self> {
        let descriptor = path.file_name().and_then(|name| name.to_str()).context("its name is not UTF-8")?;
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = fs::canonicalize(folder)?;
        let stem = descriptor.rsplit_once('.').map_or(descriptor, |(stem, _)| stem);
        let beside = ["mf", "cert"].map(|ending| format!("{stem}.{ending}"));
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let name = name.to_str().filter(|name| beside.iter().any(|it| it.eq_ignore_ascii_case(name)));
            names.extend(name.map(str::to_owned));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (manifest, has_certificate) = (only(&names, ".mf")?, only(&names, ".cert")?.is_some());
        Ok(Self {
            files: Files::Folder(folder),
            descriptor: descriptor.to_owned(),
            manifest,
            has_certificate,
        })
    }

    /// The name of the descriptor.
    pub(super) fn descriptor(&self) -> &str {
        &self.descriptor
    }

    /// The name of the manifest.
    pub(super) fn manifest(&self) -> Option<&str> {
        self.manifest.as_deref()
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.has_certificate
    }

    /// The folder of its files, unless they are in an archive.
    pub(super) fn folder(&self) -> Option<&Path> {
        match &self.files {
            Files::Archive { .. } => None,
            Files::Folder(folder) => Some(folder),
        }
    }

    /// The first of these files that it has.
    pub(super) fn find(&self, names: impl Iterator<Item = String>) -> anyhow::Result<Option<StoredFile>> {
        for name in names {
            if let Some(found) = self.stored(&name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The text of a small file.
    pub(super) fn text(&self, name: &str, limit: usize) -> anyhow::Result<String> {
        let stored = self.stored(name)?.with_context(|| format!("there is no file {name:?}"))?;
        ensure!(stored.size() <= limit as u64, "its file {name:?} has more than {limit} bytes");
        let mut text = String::new();
        match stored.take(limit as u64).read_to_string(&mut text) {
            Err(error) if error.kind() == ErrorKind::InvalidData => bail!("its file {name:?} is not UTF-8"),
            result => result.with_context(|| format!("reading its file {name:?}"))?,
        };
        Ok(text)
    }

    /// The file with this name, which has no folder.
    fn stored(&self, name: &str) -> anyhow::Result<Option<StoredFile>> {
        match &self.files {
            Files::Archive { file, members } => {
                let member = members.iter().find(|member| member.name == name);
                Ok(member.map(|member| StoredFile {
                    name: name.to_owned(),
                    file: Arc::clone(file),
                    at: member.offset,
                    end: member.offset.saturating_add(member.size),
                }))
            }
            Files::Folder(folder) => {
                let path = folder.join(name);
                if matches!(fs::symlink_metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound) {
                    return Ok(None);
                }
                // A link would have any file of this machine uploaded.
                let file = regular(&path, OFlag::O_NOFOLLOW)
                    .with_context(|| format!("its file {name:?}, which may be no link"))?;
                let end = file.metadata()?.len();
                Ok(Some(StoredFile { name: name.to_owned(), file: Arc::new(file), at: 0, end }))
            }
        }
    }
}

/// The only one of the names with this ending, outside of folders.
fn only(names: &[&str], ending: &str) -> anyhow::Result<Option<String>> {
    let mut found = names.iter().filter(|name| !name.contains('/') && has_ending(name, ending));
    let first = found.next();
    if let (Some(first), Some(second)) = (first, found.next()) {
        bail!("it has {first:?} and {second:?}, and an appliance has one file *{ending}");
    }
    Ok(first.map(|name| (*name).to_owned()))
}

/// Whether the file has this ending, and is none that macOS adds to an archive beside each other one.
fn has_ending(path: &str, ending: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    !name.starts_with("._") && name.to_ascii_lowercase().ends_with(ending)
}

/// Opens a regular file. The opening of a pipe would wait for its writer.
fn regular(path: &Path, more: OFlag) -> anyhow::Result<File> {
    let flags = (OFlag::O_NONBLOCK | more).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    ensure!(file.metadata()?.is_file(), "it is no regular file");
    Ok(file)
}
