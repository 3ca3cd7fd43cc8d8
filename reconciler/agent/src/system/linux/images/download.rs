//! From a source to a file whose checksum is right.

use std::path::Path;

use reqwest::Url;
use tokio::sync::watch;

use super::super::files::{self, blocking};
use super::partial::{self, Partial};
use super::{Result, Seen, file, http};
use crate::system::{ImageSource, SystemError};

/// One download.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) source: &'a ImageSource,
    /// Where the image is going to be.
    pub(super) image: &'a Path,
    pub(super) max_bytes: u64,
    pub(super) report: &'a watch::Sender<Seen>,
}

impl Job<'_> {
    /// Leaves the partial file complete and right, or tells why not.
    pub(super) async fn run(&self, client: &http::Client) -> Result<()> {
        match self.transfer(client).await {
            Err(error @ (SystemError::NoSpace { .. } | SystemError::ImageTooLarge { .. })) => {
                // Half an image must not keep the disk full for everybody else.
                self.discard().await?;
                Err(error)
            }
            other => other,
        }
    }

    async fn transfer(&self, client: &http::Client) -> Result<()> {
        let url = Url::parse(&self.source.url).map_err(|_| self.unusable("not a URL"))?;
        let image = self.image.to_owned();
        let partial = blocking(move || Partial::open(&image)).await?;
        let taken_up = partial.len() > 0;
        let partial = match url.scheme() {
            "file" => file::copy(self, &url, partial).await?,
            "http" | "https" => http::download(self, client, &url, partial).await?,
            _ => return Err(self.unusable("http://, https:// or file:/// is needed")),
        };
        let actual = partial.sha256();
        if actual == self.source.sha256 {
            return Ok(());
        }
        drop(partial);
        self.discard().await?;
        if taken_up {
            // What an earlier attempt left may have been of another version: once more, from the start.
            return Box::pin(self.transfer(client)).await;
        }
        Err(SystemError::ChecksumMismatch {
            url: shown(&self.source.url),
            declared: self.source.sha256.clone(),
            actual,
        })
    }

    async fn discard(&self) -> Result<()> {
        let image = self.image.to_owned();
        blocking(move || partial::discard(&image)).await
    }

    fn unusable(&self, why: &'static str) -> SystemError {
        SystemError::Invalid { what: "image URL", value: shown(&self.source.url), why }
    }

    pub(super) fn failed(&self, detail: impl Into<String>) -> SystemError {
        SystemError::Download { url: shown(&self.source.url), detail: detail.into() }
    }

    pub(super) fn not_found(&self, detail: impl Into<String>) -> SystemError {
        SystemError::ImageNotFound { url: shown(&self.source.url), detail: detail.into() }
    }

    /// Refuses what is too large for us, or for the disk, before it is downloaded.
    pub(super) fn check_size(&self, total: u64, have: u64) -> Result<()> {
        self.check_limit(total)?;
        files::check_space(self.image, total.saturating_sub(have))
    }

    pub(super) fn check_limit(&self, bytes: u64) -> Result<()> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let detail = format!("more than the {} bytes this host allows for an image", self.max_bytes);
        Err(SystemError::ImageTooLarge { url: shown(&self.source.url), detail })
    }
}

/// A URL as it may be shown to people: passwords and signed queries are secrets.
pub(super) fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else {
        return "the image's URL".to_owned();
    };
    // Only URLs that cannot have these fail here, and then they have none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    if url.query().is_some() {
        url.set_query(Some("…"));
        return url.as_str().replace("%E2%80%A6", "…");
    }
    url.into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_shown_url_has_no_secrets() {
        let shown = super::shown("https://me:secret@example.org/a.qcow2?X-Signature=secret#x");
        assert_eq!(shown, "https://example.org/a.qcow2?…");
        assert_eq!(super::shown("file:///a/b.img"), "file:///a/b.img");
    }
}
