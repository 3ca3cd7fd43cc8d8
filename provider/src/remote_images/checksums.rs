//! The images in a file of checksums: `SHA256SUMS`, `SHA512SUMS`, in GNU or BSD format.

use std::collections::BTreeMap;

use http::{StatusCode, Uri};

use super::{
    MOST_IMAGES, RemoteImage,
    client::{Client, encoded, joined},
};

/// The maximum size of a file of checksums in bytes, as hosts read it.
const MAX_BYTES: usize = 1 << 20;
/// The length of the longest name of a file, with its folders.
const LONGEST_NAME: usize = 1024;

/// Reads the file and returns its images, sorted by name.
///
/// *Errors:* no such file, or one that is not clear.
pub(super) async fn list(
    client: &Client,
    url: &Uri,
    authorization: Option<&http::HeaderValue>,
) -> Result<Vec<RemoteImage>, String> {
    let answer = client.get(url, authorization, MAX_BYTES).await?;
    if answer.status != StatusCode::OK {
        return Err(format!("HTTP {}", answer.status));
    }
    let text = String::from_utf8(answer.body).map_err(|_| "it is no text".to_owned())?;
    read(&text, url)
}

fn read(text: &str, url: &Uri) -> Result<Vec<RemoteImage>, String> {
    let mut images: BTreeMap<&str, RemoteImage> = BTreeMap::new();
    for (digest, name) in text.lines().filter_map(|line| gnu(line).or_else(|| bsd(line))) {
        let digest = digest.to_ascii_lowercase();
        let Some(name) = file_name(name).filter(|_| is_digest(&digest)) else { continue };
        let Some(at) = address(url, name) else { continue };
        if !images.contains_key(name) && images.len() >= MOST_IMAGES {
            return Err(format!("it has more than {MOST_IMAGES} files"));
        }
        let image = images.entry(name).or_insert_with(|| RemoteImage {
            name: name.to_owned(),
            url: at,
            ..RemoteImage::default()
        });
        let known = if digest.len() == 64 { &mut image.sha256 } else { &mut image.sha512 };
        if known.as_ref().is_some_and(|known| *known != digest) {
            return Err(format!("it has several checksums of {name}"));
        }
        *known = Some(digest);
    }
    Ok(images.into_values().collect())
}

/// The address of a file that the file of checksums at `sums` names.
fn address(sums: &Uri, name: &str) -> Option<String> {
    let parts: Vec<String> = name.split('/').map(encoded).collect();
    joined(sums, &parts.join("/")).map(|address| address.to_string())
}

/// The name of a file below the folder of the checksums.
fn file_name(name: &str) -> Option<&str> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_below = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    (is_below && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control)).then_some(name)
}

fn is_digest(text: &str) -> bool {
    matches!(text.len(), 64 | 128) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
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

    fn sums() -> Uri {
        "https://a.example/images/SHA256SUMS?sig=x".parse().expect("an address")
    }

    #[test]
    fn files_have_their_checksums_and_addresses() {
        let (a, b, long) = ("a1".repeat(32), "b2".repeat(32), "c3".repeat(64));
        let text = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# x.iso: 7 bytes\n{b} *./sub/b 1.iso\r\n{a}  a.qcow2\n\
             SHA512 (a.qcow2) = {long}\n{a}x  short.img\n{a}  ../outside.iso\n{a}  /absolute.iso\n"
        );
        let images = read(&text, &sums()).expect("it is clear");
        let names: Vec<&str> = images.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["a.qcow2", "sub/b 1.iso"]);
        assert_eq!((images[0].sha256.as_ref(), images[0].sha512.as_ref()), (Some(&a), Some(&long)));
        assert_eq!(images[0].url, "https://a.example/images/a.qcow2");
        assert_eq!(images[1].url, "https://a.example/images/sub/b%201.iso");
        assert_eq!(images[1].sha512, None);
    }

    #[test]
    fn two_checksums_of_one_file_are_refused_and_the_same_one_is_not() {
        let (a, b) = ("a1".repeat(32), "b2".repeat(32));
        assert_eq!(read(&format!("{a}  x\n{a}  ./x\n"), &sums()).map(|images| images.len()), Ok(1));
        let refused = read(&format!("{a}  x\n{b}  x\n"), &sums()).expect_err("refused");
        assert_eq!(refused, "it has several checksums of x");
    }
}
