//! Folders of this host for backups: which of them can be used now.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::files::overlap;
use super::shares::look_patiently;
use crate::{BackupFolderFacts, BackupFolderMapping, SystemError};

const SILENT: &str = "it, or another folder for backups, does not answer: is it on a network file system?";

/// The folders that its administrator offers.
#[derive(Clone, Debug)]
pub(super) struct BackupFolders {
    mappings: Arc<Vec<BackupFolderMapping>>,
    /// The folders with berth's own files.
    own: Arc<Vec<PathBuf>>,
    looking: Arc<Mutex<()>>,
}

impl BackupFolders {
    pub(super) fn new(mappings: Vec<BackupFolderMapping>, own: Vec<PathBuf>) -> Self {
        Self { mappings: Arc::new(mappings), own: Arc::new(own), looking: Arc::default() }
    }

    /// Returns the folders of all mappings, with what stands in their way.
    pub(super) async fn facts(&self) -> Vec<BackupFolderFacts> {
        if self.mappings.is_empty() {
            return Vec::new();
        }
        let folders = self.clone();
        let with_problems = |folders: &Self, problem: &dyn Fn(&BackupFolderMapping) -> Option<String>| {
            let fact = |mapping: &BackupFolderMapping| BackupFolderFacts {
                name: mapping.name.clone(),
                problem: problem(mapping),
            };
            folders.mappings.iter().map(fact).collect()
        };
        let looked = look_patiently(&self.looking, move || {
            with_problems(&folders, &|mapping| folders.usable(mapping).err())
        });
        looked.await.unwrap_or_else(|| with_problems(self, &|_| Some(SILENT.to_owned())))
    }

    /// Returns the path of the folder with this name.
    ///
    /// *Errors*: [`SystemError::BackupFolder`] if there is none, or it cannot be used.
    pub(super) async fn path(&self, name: &str) -> Result<PathBuf, SystemError> {
        let refuse = |detail: String| SystemError::BackupFolder { name: name.to_owned(), detail };
        let mapping = self.mappings.iter().find(|mapping| mapping.name == name).cloned();
        let mapping = mapping.ok_or_else(|| refuse("this host does not offer it".to_owned()))?;
        let folders = self.clone();
        let looked = look_patiently(&self.looking, move || folders.usable(&mapping)).await;
        looked.unwrap_or_else(|| Err(SILENT.to_owned())).map_err(refuse)
    }

    /// Returns the path without symbolic links; the error is why the folder cannot be used.
    fn usable(&self, mapping: &BackupFolderMapping) -> Result<PathBuf, String> {
        if self.mappings.iter().filter(|other| other.name == mapping.name).count() > 1 {
            return Err("two folders have this name".to_owned());
        }
        let path = mapping.path.canonicalize().map_err(|error| format!("it cannot be used: {error}"))?;
        if !path.is_dir() {
            return Err("it is not a folder".to_owned());
        }
        if self.own.iter().any(|own| overlap(own, &path)) {
            return Err("it contains berth's own files, or is among them".to_owned());
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[tokio::test]
    async fn a_folder_that_is_missing_or_has_berths_own_files_is_not_offered() {
        let root = tempfile::tempdir().expect("a folder");
        let (state, good) = (root.path().join("state"), root.path().join("good"));
        for folder in [&state, &good] {
            std::fs::create_dir(folder).expect("a folder");
        }
        let mapping =
            |name: &str, path: &Path| BackupFolderMapping { name: name.to_owned(), path: path.to_owned() };
        let mappings = vec![
            mapping("good", &good),
            mapping("missing", &root.path().join("none")),
            mapping("around", root.path()),
        ];
        let folders = BackupFolders::new(mappings, vec![state]);
        let problems: Vec<bool> = folders.facts().await.iter().map(|fact| fact.problem.is_some()).collect();
        assert_eq!(problems, [false, true, true]);
        assert!(folders.path("good").await.is_ok_and(|path| path.ends_with("good")));
        let refused = folders.path("other").await.expect_err("it is not offered").to_string();
        assert_eq!(refused, "folder for backups other: this host does not offer it");
    }
}
