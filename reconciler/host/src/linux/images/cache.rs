//! The contents of the cache, and the namespaces that may read them. Blocking.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::machine::Format;
use berth_qemu::qcow2::{self, InspectError};
use serde::{Deserialize, Serialize};

use super::super::files::{self, failed};
use super::super::layout::{Layout, is_digest};
use super::Result;
use super::partial::Partial;
use super::signature;
use crate::{Encoding, ImageFacts, ImageSource, NewImage, SystemError};

/// The metadata stored beside an image.
#[derive(Debug, Serialize, Deserialize)]
struct Sidecar {
    format: Format,
    /// How the source's bytes were encoded; those of older builds were not.
    #[serde(default)]
    encoding: Encoding,
    virtual_size: u64,
    bytes: u64,
    /// The namespaces that have downloaded it themselves. Images of older builds have none, so namespaces download them
    /// again.
    #[serde(default)]
    readers: BTreeSet<String>,
    /// The uids of the Images that it was made for here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    made_for: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Cache {
    layout: Layout,
    /// Locked while a sidecar is changed.
    changing: Arc<Mutex<()>>,
}

/// Whether the source's namespace may read an image.
pub(super) fn may_read(facts: &ImageFacts, source: &ImageSource) -> bool {
    source.shared || facts.readers.contains(&source.namespace)
}

impl Cache {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, changing: Arc::default() }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.layout.images()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, digest: &str) -> Result<Option<ImageFacts>> {
        let image = self.layout.image(digest);
        let Ok(metadata) = fs::metadata(&image) else {
            return Ok(None);
        };
        match files::read_json::<Sidecar>(&sidecar(&image))? {
            Some(Ok(sidecar)) if sidecar.bytes == metadata.len() => Ok(Some(facts(digest, &image, sidecar))),
            // Damaged from outside, so no longer an image; a pull replaces it.
            _ => Ok(None),
        }
    }

    pub(super) fn all(&self) -> Result<Vec<ImageFacts>> {
        let names = files::names(&self.folder())?;
        let mut images = Vec::new();
        for name in names.iter().filter(|n| is_digest(n)) {
            images.extend(self.get(name)?);
        }
        Ok(images)
    }

    pub(super) fn remove(&self, digest: &str) -> Result<()> {
        let _changing = self.lock();
        let image = self.layout.image(digest);
        // The image first: the leftover of a crash is then not an image.
        for path in [image.clone(), sidecar(&image)] {
            files::remove_if_there(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    pub(super) fn add_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        let _changing = self.lock();
        self.change(digest, |facts| facts.readers.insert(namespace.to_owned())).map(drop)
    }

    pub(super) fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        let _changing = self.lock();
        self.change(digest, |facts| facts.readers.remove(namespace)).map(drop)
    }

    /// Admits a download with the right checksum: renames it to its digest if it was stored, or else records that its
    /// namespace may read the existing image. Holds the download's lock until then. `made` is the file that was made from
    /// encoded bytes, if they were stored.
    pub(super) fn admit(
        &self,
        source: &ImageSource,
        verified: Partial,
        made: Option<&Path>,
    ) -> Result<ImageFacts> {
        let _changing = self.lock();
        let here = self.change(&source.stored_digest(), |facts| {
            let is_maker = source.upload().is_some_and(|uid| facts.made_for.insert(uid.to_owned()));
            facts.readers.insert(source.namespace.clone()) || is_maker
        })?;
        let facts = match (here, verified.is_stored()) {
            (Some(facts), is_stored) => {
                if is_stored {
                    verified.discard()?;
                }
                facts
            }
            (None, true) => self.name(source, verified, made)?,
            (None, false) => {
                let detail = "it went from the cache meanwhile".to_owned();
                return Err(SystemError::Download { url: source.shown.clone(), detail });
            }
        };
        as_declared(facts, source)
    }

    /// Returns the image that was made for an object with one of these uids, which the first of them has from now on.
    pub(super) fn made(&self, new: &NewImage) -> Result<Option<ImageFacts>> {
        let _changing = self.lock();
        let is_its = |facts: &ImageFacts| {
            facts.made_for.contains(&new.uid)
                || new.former_uid.as_ref().is_some_and(|uid| facts.made_for.contains(uid))
        };
        let Some(found) = self.all()?.into_iter().find(is_its) else { return Ok(None) };
        self.add_maker(&found.digest, new)
    }

    fn add_maker(&self, digest: &str, new: &NewImage) -> Result<Option<ImageFacts>> {
        self.change(digest, |facts| {
            let reads = facts.readers.insert(new.namespace.clone());
            facts.made_for.insert(new.uid.clone()) || reads
        })
    }

    /// Admits a file that was made from a snapshot, under its digest. The same bytes may be here already.
    pub(super) fn admit_made(&self, new: &NewImage, digest: &str, path: &Path) -> Result<ImageFacts> {
        let _changing = self.lock();
        let source = ImageSource::made(new, digest);
        if let Some(facts) = self.add_maker(digest, new)? {
            files::remove_if_there(path).map_err(failed("remove", path))?;
            return as_declared(facts, &source);
        }
        let mut file = File::open(path).map_err(failed("read", path))?;
        let info = match qcow2::inspect(&mut file, Format::Qcow2) {
            Ok(info) => info,
            Err(InspectError::Read(error)) => return Err(failed("read", path)(error)),
            Err(error) => return Err(refused(&source, &error)),
        };
        let beside = Sidecar {
            format: info.format,
            encoding: Encoding::default(),
            virtual_size: info.virtual_size,
            bytes: info.file_size,
            readers: BTreeSet::from([new.namespace.clone()]),
            made_for: BTreeSet::from([new.uid.clone()]),
        };
        let image = self.layout.image(digest);
        files::write_json(&sidecar(&image), &beside, 0o600)?;
        files::grant(path, None)?;
        file.sync_all().map_err(failed("write", path))?;
        fs::rename(path, &image).map_err(failed("name", &image))?;
        files::sync_parent(&image).map_err(failed("write", &image))?;
        Ok(facts(digest, &image, beside))
    }

    /// Returns the entry after changing its readers, or the objects that it was made for.
    fn change(
        &self,
        digest: &str,
        change: impl FnOnce(&mut ImageFacts) -> bool,
    ) -> Result<Option<ImageFacts>> {
        let Some(mut facts) = self.get(digest)? else { return Ok(None) };
        if change(&mut facts) {
            let changed = Sidecar {
                format: facts.format,
                encoding: facts.encoding,
                virtual_size: facts.virtual_size,
                bytes: facts.bytes,
                readers: facts.readers.clone(),
                made_for: facts.made_for.clone(),
            };
            files::write_json(&sidecar(&facts.path), &changed, 0o600)?;
        }
        Ok(Some(facts))
    }

    fn name(&self, source: &ImageSource, verified: Partial, made: Option<&Path>) -> Result<ImageFacts> {
        let digest = source.stored_digest();
        let image = self.layout.image(&digest);
        let path = made.unwrap_or(verified.path()).to_owned();
        let mut file = File::open(&path).map_err(failed("read", &path))?;
        let info = match qcow2::inspect(&mut file, source.format) {
            Ok(info) => info,
            Err(InspectError::Read(error)) => return Err(failed("read", &path)(error)),
            Err(error) => {
                // These bytes can never become an image, so they are not kept.
                verified.discard()?;
                return Err(refused(source, &error));
            }
        };
        let beside = Sidecar {
            format: info.format,
            encoding: source.encoding,
            virtual_size: info.virtual_size,
            bytes: info.file_size,
            readers: BTreeSet::from([source.namespace.clone()]),
            made_for: source.upload().map(str::to_owned).into_iter().collect(),
        };
        files::write_json(&sidecar(&image), &beside, 0o600)?;
        files::grant(&path, None)?;
        file.sync_all().map_err(failed("write", &path))?;
        match made {
            Some(made) => {
                fs::rename(made, &image).map_err(failed("name", &image))?;
                verified.discard()?;
            }
            None => verified.name(&image)?,
        }
        files::sync_parent(&image).map_err(failed("write", &image))?;
        Ok(facts(&digest, &image, beside))
    }
}

fn refused(source: &ImageSource, error: &InspectError) -> SystemError {
    let (url, detail) = (source.shown.clone(), error.to_string());
    match error {
        InspectError::TooLarge { .. } => SystemError::ImageTooLarge { url, detail },
        _ => SystemError::ImageRefused { url, detail: detail + &signature::hint(source) },
    }
}

fn as_declared(facts: ImageFacts, source: &ImageSource) -> Result<ImageFacts> {
    if (facts.format, facts.encoding) == (source.format, source.encoding) {
        return Ok(facts);
    }
    let declared = described(source.format, source.encoding);
    let found = described(facts.format, facts.encoding);
    let detail = format!("the image is declared as {declared} and is {found}");
    Err(SystemError::ImageRefused { url: source.shown.clone(), detail })
}

fn described(format: Format, encoding: Encoding) -> String {
    let format = encoding.foreign.map_or(format.name(), |foreign| foreign.name());
    let archive = match (encoding.archive, encoding.ova) {
        (_, Some(_)) => " in an OVA",
        (true, None) => " in an archive",
        (false, None) => "",
    };
    match encoding.compression {
        Some(compression) => format!("{format}{archive} compressed with {}", compression.name()),
        None => format!("{format}{archive}"),
    }
}

fn facts(digest: &str, image: &Path, sidecar: Sidecar) -> ImageFacts {
    ImageFacts {
        digest: digest.to_owned(),
        format: sidecar.format,
        encoding: sidecar.encoding,
        virtual_size: sidecar.virtual_size,
        bytes: sidecar.bytes,
        path: image.to_owned(),
        readers: sidecar.readers,
        made_for: sidecar.made_for,
    }
}

fn sidecar(image: &Path) -> PathBuf {
    image.with_extension("json")
}
