//! The manifest of an appliance: `SHA256(disk.vmdk)= 9f86…`, one line a file.

use std::collections::BTreeMap;

use aws_lc_rs::digest;

/// The most bytes of a manifest.
pub const MAX_MANIFEST: usize = 1 << 20;

/// Why a manifest is not read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Another text.
    #[error("its line {0} is not of the form SHA256(FILE)= DIGEST, with SHA1, SHA256, SHA384 or SHA512")]
    Line(usize),
    /// Which of both holds cannot be known.
    #[error("it has two digests of {0:?}")]
    Twice(String),
}

/// The digest that a file has to have.
#[derive(Clone, Debug)]
pub struct ExpectedDigest {
    name: &'static str,
    algorithm: &'static digest::Algorithm,
    hex: String,
}

impl ExpectedDigest {
    /// The name of its algorithm.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A computation of a digest with its algorithm.
    pub fn context(&self) -> digest::Context {
        digest::Context::new(self.algorithm)
    }

    /// Whether the digest is this one.
    pub fn is(&self, found: &digest::Digest) -> bool {
        self.hex == hex(found)
    }
}

/// A digest in hexadecimal digits.
pub fn hex(digest: &digest::Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digests by the names of their files.
#[derive(Clone, Debug, Default)]
pub struct Manifest(BTreeMap<String, ExpectedDigest>);

impl Manifest {
    /// The digest of the file with this name.
    pub fn of(&self, name: &str) -> Option<&ExpectedDigest> {
        self.0.get(name)
    }
}

/// Reads a manifest.
///
/// # Errors
/// When a line is of another form.
pub fn read(text: &str) -> Result<Manifest, ManifestError> {
    let mut digests = BTreeMap::new();
    // Editors of Windows write it at the start of a text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (name, digest) = entry(line).ok_or(ManifestError::Line(index + 1))?;
        if digests.insert(name.clone(), digest).is_some() {
            return Err(ManifestError::Twice(name));
        }
    }
    Ok(Manifest(digests))
}

fn entry(line: &str) -> Option<(String, ExpectedDigest)> {
    let (algorithm, rest) = line.split_once('(')?;
    // A name may have parentheses too.
    let (name, hex) = rest.rsplit_once(')')?;
    let hex = hex.trim_start().strip_prefix('=')?.trim().to_ascii_lowercase();
    let (name_of_it, algorithm) = match algorithm.trim().to_ascii_uppercase().as_str() {
        "SHA1" | "SHA-1" => ("SHA-1", &digest::SHA1_FOR_LEGACY_USE_ONLY),
        "SHA256" | "SHA-256" => ("SHA-256", &digest::SHA256),
        "SHA384" | "SHA-384" => ("SHA-384", &digest::SHA384),
        "SHA512" | "SHA-512" => ("SHA-512", &digest::SHA512),
        _ => return None,
    };
    let is_whole =
        hex.len() == 2 * algorithm.output_len() && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    let name = name.trim().trim_start_matches("./").to_owned();
    is_whole.then_some((name, ExpectedDigest { name: name_of_it, algorithm, hex }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_of_vmware_and_virtualbox_are_read() {
        let empty = digest::digest(&digest::SHA256, b"");
        let text = format!(
            "\u{feff}SHA256(box.ovf)= {}\r\nSHA256 (my disk (1).vmdk) = {}\n\nSHA1(a.vmdk)= {}\n",
            hex(&empty),
            hex(&empty).to_uppercase(),
            hex(&digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"a"))
        );
        let manifest = read(&text).expect("it is a manifest");
        for name in ["box.ovf", "my disk (1).vmdk"] {
            assert!(manifest.of(name).expect("it is there").is(&empty), "{name}");
        }
        let sha1 = manifest.of("a.vmdk").expect("it is there");
        let mut context = sha1.context();
        context.update(b"b");
        assert_eq!(sha1.name(), "SHA-1");
        assert!(!sha1.is(&context.finish()), "it is that of another file");
        assert!(manifest.of("b.vmdk").is_none());
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_left_out() {
        let digest = "0".repeat(64);
        for text in [
            format!("MD5(a)= {digest}"),
            format!("SHA256(a)= {}", &digest[1..]),
            format!("SHA1(a)= {digest}"),
            format!("SHA256(a) {digest}"),
            format!("SHA256(a)= {}", digest.replace('0', "x")),
            "SHA256".to_owned(),
        ] {
            assert!(matches!(read(&text), Err(ManifestError::Line(1))), "{text}");
        }
        let twice = format!("SHA256(a)= {digest}\nSHA256(./a)= {digest}\n");
        assert!(matches!(read(&twice), Err(ManifestError::Twice(name)) if name == "a"));
    }
}
