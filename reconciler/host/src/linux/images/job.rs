//! One download: its source, its limits, and the errors that name it.

use tokio::sync::watch;

use super::super::files::{self, blocking};
use super::partial::{Partial, Place};
use super::rules::Rules;
use super::{Result, Seen};
use crate::{ImageSource, SystemError};

/// One download.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) source: &'a ImageSource,
    pub(super) place: &'a Place,
    /// Whether the bytes are stored, or only verified.
    pub(super) stored: bool,
    pub(super) max_bytes: u64,
    pub(super) rules: &'a Rules,
    pub(super) report: &'a watch::Sender<Seen>,
}

impl Job<'_> {
    pub(super) async fn partial(&self) -> Result<Partial> {
        let (place, digest) = (self.place.clone(), self.source.digest.clone());
        if !self.stored {
            return Ok(Partial::unstored(&place, &digest));
        }
        blocking(move || Partial::open(&place, &digest)).await
    }

    pub(super) fn unusable(&self, why: &'static str) -> SystemError {
        SystemError::Invalid { what: "image URL", value: self.source.shown.clone(), why }
    }

    pub(super) fn failed(&self, detail: impl Into<String>) -> SystemError {
        SystemError::Download { url: self.source.shown.clone(), detail: detail.into() }
    }

    pub(super) fn not_found(&self, detail: impl Into<String>) -> SystemError {
        SystemError::ImageNotFound { url: self.source.shown.clone(), detail: detail.into() }
    }

    pub(super) fn not_allowed(&self, why: &'static str) -> SystemError {
        SystemError::ImageNotAllowed { url: self.source.shown.clone(), why }
    }

    /// Rejects a download that exceeds the size limit or the free disk space before it starts.
    pub(super) fn check_size(&self, total: u64, have: u64) -> Result<()> {
        self.check_limit(total)?;
        if !self.stored {
            return Ok(());
        }
        files::check_space(&self.place.file, total.saturating_sub(have))
    }

    pub(super) fn check_limit(&self, bytes: u64) -> Result<()> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let detail = format!("more than the {} bytes this host allows for an image", self.max_bytes);
        Err(SystemError::ImageTooLarge { url: self.source.shown.clone(), detail })
    }
}
