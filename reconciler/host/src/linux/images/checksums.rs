//! Checksum files: `SHA256SUMS`, `SHA512SUMS`, in GNU or BSD format.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

use super::super::layout::is_digest;
use super::Result;
use super::http::{Client, NOT_ALLOWED, NoAnswer};
use crate::{ChecksumSource, SystemError};

/// The maximum size of a checksum file, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The time limit for fetching it.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the image's digest from the file.
pub(super) async fn find(client: &Client, source: &ChecksumSource) -> Result<String> {
    let failed = |detail: String| SystemError::Download { url: source.shown.clone(), detail };
    let name = file_name(&source.image_url)
        .ok_or_else(|| failed("the image's URL does not end in a file name to look for".to_owned()))?;
    let text = tokio::time::timeout(LIMIT, fetch(client, source))
        .await
        .map_err(|_| failed(format!("it did not come within {} seconds", LIMIT.as_secs())))??;
    let mut found = digests_of(&text, &name);
    // The strongest algorithm wins.
    found.sort_by_key(|digest| std::cmp::Reverse(digest.len()));
    found.dedup();
    match found.as_slice() {
        [] => Err(SystemError::ImageNotFound {
            url: source.shown.clone(),
            detail: format!("it has no SHA-256 or SHA-512 checksum of {name}"),
        }),
        [first, second, ..] if first.len() == second.len() => {
            Err(failed(format!("it has several checksums of {name}")))
        }
        [first, ..] => Ok(first.clone()),
    }
}

async fn fetch(client: &Client, source: &ChecksumSource) -> Result<String> {
    let failed = |detail: String| SystemError::Download { url: source.shown.clone(), detail };
    let url = Url::parse(&source.url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| failed("http:// or https:// is needed".to_owned()))?;
    let answer = client.small(&url, HeaderMap::new(), MAX_BYTES).await.map_err(|why| match why {
        NoAnswer::NotAllowed => SystemError::ImageNotAllowed { url: source.shown.clone(), why: NOT_ALLOWED },
        NoAnswer::Never(detail) | NoAnswer::Failed(detail) => failed(detail),
    })?;
    match answer.status {
        StatusCode::OK => {}
        status @ (StatusCode::NOT_FOUND | StatusCode::GONE) => {
            let (url, detail) = (source.shown.clone(), format!("HTTP {status}"));
            return Err(SystemError::ImageNotFound { url, detail });
        }
        status => return Err(failed(format!("HTTP {status}"))),
    }
    String::from_utf8(answer.body).map_err(|_| failed("it is no text".to_owned()))
}

/// Returns the last segment of a URL's path.
fn file_name(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let last = url.path_segments()?.next_back().filter(|last| !last.is_empty())?;
    // The path of a `file:` URL is percent-decoded, like the names in a checksum file.
    let path = Url::parse(&format!("file:///{last}")).ok()?.to_file_path().ok()?;
    path.file_name()?.to_str().map(str::to_owned)
}

/// Returns every digest in the text for a file of this name, in any directory.
fn digests_of(text: &str, name: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| gnu(line).or_else(|| bsd(line)));
    let named = lines.filter(|(_, file)| file.rsplit('/').next() == Some(name));
    named.map(|(digest, _)| digest.to_ascii_lowercase()).filter(|digest| is_digest(digest)).collect()
}

/// `<digest>  <name>`, or ` *` before the name.
fn gnu(line: &str) -> Option<(&str, &str)> {
    let (digest, rest) = line.split_once(' ')?;
    let name = rest.strip_prefix([' ', '*']).unwrap_or(rest);
    Some((digest, name.trim_end())).filter(|(digest, _)| is_digest(&digest.to_ascii_lowercase()))
}

/// `SHA256 (<name>) = <digest>`
fn bsd(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("SHA256 (").or_else(|| line.strip_prefix("SHA512 ("))?;
    let (name, digest) = rest.rsplit_once(") = ")?;
    Some((digest.trim_end(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gnu_and_bsd_lines_are_read_and_other_files_lines_are_not() {
        let (a, b, long) = ("a1".repeat(32), "b2".repeat(32), "c3".repeat(64));
        let text = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# debian.qcow2: 7 bytes\n{a}  debian.qcow2\n\
             {b} *./other.qcow2\r\nSHA512 (debian.qcow2) = {long}\nSHA256 (third (1).img) = {}\n{a}x  short.img\n{b}  old-debian.qcow2\n",
            b.to_uppercase()
        );
        assert_eq!(digests_of(&text, "debian.qcow2"), [a, long]);
        assert_eq!(digests_of(&text, "other.qcow2"), std::slice::from_ref(&b));
        assert_eq!(digests_of(&text, "third (1).img"), [b]);
        assert!(digests_of(&text, "short.img").is_empty() && digests_of(&text, "none").is_empty());
    }

    #[test]
    fn the_name_is_the_last_part_of_the_path() {
        assert_eq!(file_name("https://a/b/debian%2012.qcow2?sig=x#y").as_deref(), Some("debian 12.qcow2"));
        assert_eq!(file_name("https://a/b/"), None);
    }
}
