//! Folders of this host for guests: which of them guests can have now.
//!
//! A guest that writes to a folder can replace what is in it by a symbolic link. So no share lies in another one that guests write
//! to: its path would lead where that guest wants. The guest's own links lead nowhere: its kernel follows them, in its own files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::machine::{ShareSpec, SharedFolder, VirtiofsFiles};
use nix::unistd::Uid;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::files::{blocking, overlap};
use super::program::Program;
use crate::{ShareFacts, ShareMapping, SystemError};

/// Serves a folder to a guest.
pub(super) const VIRTIOFSD: Program = Program {
    name: "virtiofsd",
    advice: "VMs with shares need it (Debian 12: apt install qemu-system-common; newer Debian, Ubuntu, Fedora: install virtiofsd)",
};

/// How long a folder may take to answer. One of a network file system may never do.
const PATIENCE: Duration = Duration::from_secs(5);
const SILENT: &str =
    "its folder, or another one that this host shares, does not answer: is it on a network file system?";

/// Looks at folders that may be on a network file system. Returns None if they do not answer in time. `looking` is held meanwhile: a folder
/// that does not answer holds up one thread, and not one for each look.
pub(super) async fn look_patiently<T: Send + 'static>(
    looking: &Arc<Mutex<()>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let alone = timeout(PATIENCE, Arc::clone(looking).lock_owned()).await.ok()?;
    let looked = blocking(move || {
        let found = work();
        drop(alone);
        found
    });
    timeout(PATIENCE, looked).await.ok()
}

/// The folders that guests may have.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    mappings: Arc<Vec<ShareMapping>>,
    /// The folders with berth's own files, without symbolic links.
    own: Arc<Vec<PathBuf>>,
    /// Held while folders are looked at: one that does not answer holds up one thread, and not one for each look.
    looking: Arc<Mutex<()>>,
}

impl Shares {
    pub(super) fn new(mappings: Vec<ShareMapping>, own: Vec<PathBuf>) -> Self {
        Self { mappings: Arc::new(mappings), own: Arc::new(own), looking: Arc::default() }
    }

    /// Returns the folders of all mappings, with what stands in their way.
    pub(super) async fn facts(&self) -> Vec<ShareFacts> {
        if self.mappings.is_empty() {
            return Vec::new();
        }
        let looked = self.look(|shares| shares.with_problems(|mapping| shares.folder(mapping).err()));
        looked.await.unwrap_or_else(|| self.with_problems(|_| Some(SILENT.to_owned())))
    }

    fn with_problems(&self, problem: impl Fn(&ShareMapping) -> Option<String>) -> Vec<ShareFacts> {
        let fact = |mapping: &ShareMapping| ShareFacts {
            name: mapping.name.clone(),
            read_only: mapping.read_only,
            problem: problem(mapping),
        };
        self.mappings.iter().map(fact).collect()
    }

    /// Returns None if the folders do not answer in time.
    async fn look<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> T + Send + 'static) -> Option<T> {
        let shares = self.clone();
        look_patiently(&self.looking, move || work(&shares)).await
    }

    /// Returns the program and the folders for a machine's shares, in their order.
    ///
    /// *Errors*: [`SystemError::Share`] if one of them is not shared as the machine needs it, or cannot be.
    pub(super) async fn files(&self, shares: &[ShareSpec]) -> Result<Option<VirtiofsFiles>, SystemError> {
        let Some(first) = shares.first() else { return Ok(None) };
        let (name, wanted) = (first.name.clone(), shares.to_vec());
        let looked = self.look(move |shares| shares.files_now(&wanted)).await;
        looked.unwrap_or_else(|| Err(SystemError::Share { name, detail: SILENT.to_owned() })).map(Some)
    }

    fn files_now(&self, shares: &[ShareSpec]) -> Result<VirtiofsFiles, SystemError> {
        let folder = |share: &ShareSpec| {
            let refuse = |detail: String| SystemError::Share { name: share.name.clone(), detail };
            let mapping = self.mappings.iter().find(|mapping| mapping.name == share.name);
            let mapping = mapping.ok_or_else(|| refuse("this host does not share it".to_owned()))?;
            if mapping.read_only && !share.read_only {
                return Err(refuse("this host shares it read-only".to_owned()));
            }
            let path = self.folder(mapping).map_err(refuse)?;
            Ok(SharedFolder { path, read_only: share.read_only })
        };
        let folders = shares.iter().map(folder).collect::<Result<_, SystemError>>()?;
        Ok(VirtiofsFiles { program: VIRTIOFSD.find()?, folders })
    }

    /// Returns the path of the folder without symbolic links; the error is why no guest can have it.
    fn folder(&self, mapping: &ShareMapping) -> Result<PathBuf, String> {
        if !Uid::effective().is_root() {
            return Err("the agent does not run as root, which sharing a folder needs".to_owned());
        }
        VIRTIOFSD.find().map_err(|error| error.to_string())?;
        if self.mappings.iter().filter(|other| other.name == mapping.name).count() > 1 {
            return Err("two folders have this name".to_owned());
        }
        let path =
            mapping.path.canonicalize().map_err(|error| format!("its folder cannot be used: {error}"))?;
        if !path.is_dir() {
            return Err("it is not a folder".to_owned());
        }
        if path.to_string_lossy().contains([',', '\\']) {
            return Err("the path of its folder contains a comma or a backslash".to_owned());
        }
        if self.own.iter().any(|own| overlap(own, &path)) {
            return Err("its folder contains berth's own files, or is among them".to_owned());
        }
        let around = self.mappings.iter().filter(|other| !other.read_only).find(|other| {
            other.path.canonicalize().is_ok_and(|other| path != other && path.starts_with(other))
                || (mapping.path != other.path && mapping.path.starts_with(&other.path))
        });
        match around {
            Some(other) => Err(format!("its folder is in that of {}, which guests write to", other.name)),
            None => Ok(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn mapping(name: &str, path: &Path, read_only: bool) -> ShareMapping {
        ShareMapping { name: name.to_owned(), path: path.to_owned(), read_only }
    }

    fn share(name: &str, read_only: bool) -> ShareSpec {
        ShareSpec { name: name.to_owned(), tag: name.to_owned(), read_only }
    }

    #[tokio::test]
    async fn a_folder_is_shared_as_its_administrator_declares_it_and_not_within_one_that_guests_write_to() {
        if !Uid::effective().is_root() || VIRTIOFSD.find().is_err() {
            eprintln!("skipped: this needs root and virtiofsd");
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let top = root.path().canonicalize().expect("it exists");
        for folder in ["state/instances", "media/inner", "data/inner", "linked"] {
            fs::create_dir_all(top.join(folder)).expect("created");
        }
        fs::write(top.join("file"), "").expect("written");
        std::os::unix::fs::symlink(top.join("data/inner"), top.join("link")).expect("linked");
        let shares = Shares::new(
            vec![
                mapping("media", &top.join("media"), true),
                mapping("in-media", &top.join("media/inner"), false),
                mapping("data", &top.join("data"), false),
                mapping("data-ro", &top.join("data"), true),
                mapping("in-data", &top.join("data/inner"), false),
                mapping("link", &top.join("link"), true),
                mapping("file", &top.join("file"), false),
                mapping("gone", &top.join("gone"), false),
                mapping("all", &top, true),
                mapping("own", &top.join("state/instances"), true),
                mapping("twice", &top.join("linked"), true),
                mapping("twice", &top.join("linked"), true),
            ],
            vec![top.join("state")],
        );
        let problems: Vec<(String, String)> = shares
            .facts()
            .await
            .into_iter()
            .map(|facts| (facts.name, facts.problem.unwrap_or_default()))
            .collect();
        let problem = |name: &str| {
            let found = problems.iter().find(|(of, _)| of == name);
            found.map(|(_, problem)| problem.as_str()).expect("it is listed")
        };
        for usable in ["media", "in-media", "data", "data-ro"] {
            assert_eq!(problem(usable), "", "{usable}");
        }
        for (name, why) in [
            ("in-data", "in that of data"),
            ("link", "in that of data"),
            ("file", "not a folder"),
            ("gone", "cannot be used"),
            ("all", "berth's own files"),
            ("own", "berth's own files"),
            ("twice", "two folders"),
        ] {
            assert!(problem(name).contains(why), "{name}: {}", problem(name));
        }

        assert_eq!(shares.files(&[]).await.expect("none is needed"), None);
        let wanted = [share("media", true), share("data", false), share("data", true)];
        let folders = shares.files(&wanted).await.expect("they are shared").expect("there are some").folders;
        let of = |path: &str, read_only| SharedFolder { path: top.join(path), read_only };
        assert_eq!(folders, [of("media", true), of("data", false), of("data", true)]);
        for (refused, why) in [
            (share("media", false), "read-only"),
            (share("nothing", true), "does not share"),
            (share("own", true), "own files"),
        ] {
            let error = shares.files(std::slice::from_ref(&refused)).await;
            let error = error.expect_err("it is refused").to_string();
            assert!(error.contains(why), "{refused:?}: {error}");
        }
    }
}
