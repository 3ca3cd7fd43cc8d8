//! Observations of guests in a file, so that an agent that starts later knows them.

use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Mutex, OnceCell};

use super::super::files::{self, blocking};
use super::Result;

/// A file with records of one kind. Without records there is no file.
#[derive(Debug)]
pub(super) struct RecordsFile<R> {
    path: PathBuf,
    /// The records, for messages.
    about: &'static str,
    read: OnceCell<()>,
    /// The content of the file, once it has been read.
    written: Mutex<Vec<R>>,
}

impl<R: Clone + PartialEq + Serialize + DeserializeOwned + Send + 'static> RecordsFile<R> {
    pub(super) fn new(path: PathBuf, about: &'static str) -> Self {
        Self { path, about, read: OnceCell::new(), written: Mutex::default() }
    }

    /// Reads the file, once, and gives its records to `take`.
    pub(super) async fn read(&self, take: impl FnOnce(&[R])) -> Result<()> {
        let read = async {
            let path = self.path.clone();
            let found: Option<std::result::Result<Vec<R>, String>> =
                blocking(move || files::read_json(&path)).await?;
            let records = found.transpose().unwrap_or_else(|error| {
                tracing::warn!(error, "{} cannot be read: each counts once it is seen again", self.about);
                None
            });
            let records = records.unwrap_or_default();
            take(&records);
            *self.written.lock().await = records;
            Ok(())
        };
        self.read.get_or_try_init(|| read).await.copied()
    }

    /// Writes the file if it has other records. Guests do not wait for it: an agent that starts later observes them anew.
    pub(super) async fn write(&self, records: Vec<R>) {
        let mut written = self.written.lock().await;
        if *written == records {
            return;
        }
        let (path, content) = (self.path.clone(), records.clone());
        let done = blocking(move || {
            if content.is_empty() {
                return files::remove_if_there(&path).map_err(files::failed("remove", &path));
            }
            files::ensure_folder(path.parent().unwrap_or(&path))?;
            files::write_json(&path, &content, 0o600)
        });
        match done.await {
            Ok(()) => *written = records,
            Err(error) => tracing::warn!(error = error.chain(), "{} cannot be written", self.about),
        }
    }
}
