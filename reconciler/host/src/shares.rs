//! Folders of the host that the administrator shares with guests.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The maximum length of a name: by default it is the tag in the guest, which virtio-fs limits to 36 bytes.
const MOST_NAME: usize = 36;
/// The maximum length of a path.
const MOST_PATH: usize = 1024;

/// A folder of this host, and the name under which guests may have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMapping {
    pub name: String,
    /// Absolute.
    pub path: PathBuf,
    /// Whether guests can only read it.
    pub read_only: bool,
}

impl FromStr for ShareMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=FOLDER or NAME=FOLDER:ro"))?;
        check_name(name)?;
        let (path, read_only) = match path.strip_suffix(":ro") {
            Some(path) => (path, true),
            None => (path.strip_suffix(":rw").unwrap_or(path), false),
        };
        // virtiofsd separates its options by commas, and takes a backslash as an escape.
        let is_usable =
            path.len() <= MOST_PATH && !path.contains([',', '\\']) && !path.chars().any(char::is_control);
        if !path.starts_with('/') || !is_usable {
            return Err(format!(
                "{path:?} is not an absolute path without commas and backslashes, at most {MOST_PATH} bytes long"
            ));
        }
        Ok(Self { name: name.to_owned(), path: path.into(), read_only })
    }
}

/// Checks the name of a folder. The error is for people.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=MOST_NAME).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    match is_name {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is not a name: lower-case letters, digits and '-', at most {MOST_NAME} characters, not first or last '-'"
        )),
    }
}

/// Checks the path of a folder. The error is for people.
pub(crate) fn folder_path(path: &str) -> Result<PathBuf, String> {
    let is_usable = Path::new(path).is_absolute() && path.len() <= MOST_PATH;
    if !is_usable || path.chars().any(char::is_control) {
        return Err(format!("{path:?} is not an absolute path, at most {MOST_PATH} bytes long"));
    }
    Ok(path.into())
}

/// A folder that guests may have, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareFacts {
    pub name: String,
    pub read_only: bool,
    /// Why no guest can have it, for people.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_name_with_an_absolute_path_and_may_be_read_only() {
        let parse = |text: &str| text.parse::<ShareMapping>();
        let media =
            |path: &str, read_only| ShareMapping { name: "media".to_owned(), path: path.into(), read_only };
        assert_eq!(parse("media=/srv/media"), Ok(media("/srv/media", false)));
        assert_eq!(parse("media=/srv/media:ro"), Ok(media("/srv/media", true)));
        assert_eq!(parse("media=/srv/media:rw"), Ok(media("/srv/media", false)));
        assert_eq!(parse("media=/srv/a:b=c"), Ok(media("/srv/a:b=c", false)));
        let long = format!("{}=/srv", "a".repeat(37));
        let deep = format!("a=/{}", "a".repeat(1024));
        for wrong in
            ["media", "=/srv", "Media=/srv", "-a=/srv", "a=srv", "a=", "a=/srv,x", "a=/srv\\x", &long, &deep]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
