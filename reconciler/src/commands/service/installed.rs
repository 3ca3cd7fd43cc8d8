//! The units in the folder of systemd: a unit that an administrator has masked or changed is not lost by the next installation.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use sha2::{Digest, Sha256};

use super::super::incoming;
use crate::service::Unit;

/// The beginning of the first line of an installed unit, before the checksum of the lines that follow.
const HEAD: &str = "# Written by `berth service install`. For changes: systemctl edit UNIT. sha256 ";
/// The end of the name of a unit that was changed. systemd does not read files with such names.
const FORMER: &str = ".old";
/// The greatest length in bytes of a unit that is kept.
const LONGEST: u64 = 1 << 20;

/// Writes the units. Returns their paths, and whether one of them was there.
///
/// *Errors:* one is masked; it cannot be read or written. None is written if one is masked.
pub(super) fn write(units: &[Unit], folder: &Path) -> anyhow::Result<(Vec<PathBuf>, bool)> {
    let mut found = Vec::new();
    for unit in units {
        let path = folder.join(unit.name);
        let text = existing(&path).with_context(|| format!("reading {}", path.display()))?;
        if text.as_deref() == Some("") || is_null(&path) {
            bail!(
                "{0} is masked, so that it does not start: run `systemctl unmask {1}` first, or remove {0}",
                path.display(),
                unit.name
            );
        }
        found.push((unit, path, text));
    }
    let is_again = found.iter().any(|(_, _, text)| text.is_some());
    let mut paths = Vec::new();
    for (unit, path, former) in found {
        let text = with_checksum(&unit.text);
        if let Some(former) =
            former.filter(|former| *former != text && *former != unit.text && !is_own(former))
        {
            let kept = folder.join(format!("{}{FORMER}", unit.name));
            incoming::write(&kept, former.as_bytes())?;
            notice!(
                "{} was changed, or is of another version of berth: it is kept as {}. Put changes of your own into `systemctl edit {}`",
                path.display(),
                kept.display(),
                unit.name
            );
        }
        incoming::write(&path, text.as_bytes())?;
        paths.push(path);
    }
    Ok((paths, is_again))
}

/// Returns the text of a unit that is there. A link to `/dev/null` has none.
fn existing(path: &Path) -> anyhow::Result<Option<String>> {
    if is_null(path) {
        return Ok(None);
    }
    let file = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(found) if !found.is_file() => bail!("it is no file"),
        found => {
            found?;
            File::open(path)?
        }
    };
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text)?;
    ensure!(
        u64::try_from(text.len()).is_ok_and(|length| length <= LONGEST),
        "it has more than {LONGEST} bytes, as no unit has"
    );
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Whether a unit is masked by a link.
fn is_null(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

fn with_checksum(text: &str) -> String {
    format!("{HEAD}{}\n{text}", checksum(text))
}

fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a unit is as an installation wrote it, with whatever options.
fn is_own(text: &str) -> bool {
    let parts = text.split_once('\n').and_then(|(first, rest)| Some((first.strip_prefix(HEAD)?, rest)));
    parts.is_some_and(|(sum, rest)| sum == checksum(rest))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn unit(text: &str) -> Unit {
        Unit { name: "berth.service", text: text.to_owned() }
    }

    fn read(folder: &Path, name: &str) -> Option<String> {
        fs::read_to_string(folder.join(name)).ok()
    }

    #[test]
    fn a_changed_unit_is_kept_beside_the_new_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let install = |text: &str| write(&[unit(text)], folder).expect("written").1;
        assert!(!install("[Unit]\n"), "the first installation");
        assert!(install("[Unit]\nA=1\n") && install("[Unit]\nA=2\n"));
        assert_eq!(read(folder, "berth.service.old"), None, "other options are no change by a person");
        let changed = read(folder, "berth.service").expect("there") + "Environment=MINE=1\n";
        fs::write(folder.join("berth.service"), &changed).expect("changed");
        install("[Unit]\nA=3\n");
        assert_eq!(read(folder, "berth.service.old").as_deref(), Some(changed.as_str()));
        assert!(read(folder, "berth.service").expect("there").ends_with("\n[Unit]\nA=3\n"));
        install("[Unit]\nA=4\n");
        assert_eq!(read(folder, "berth.service.old").as_deref(), Some(changed.as_str()), "still there");
    }

    #[test]
    fn a_masked_unit_stays_so_and_no_other_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let units = [Unit { name: "berth-machines.service", text: "a".to_owned() }, unit("b")];
        let refused = || format!("{:#}", write(&units, folder).expect_err("masked"));
        symlink("/dev/null", folder.join("berth.service")).expect("a link");
        assert!(refused().contains("systemctl unmask berth.service"), "{}", refused());
        fs::remove_file(folder.join("berth.service")).expect("removed");
        File::create(folder.join("berth.service")).expect("an empty file");
        assert!(refused().contains("is masked"), "{}", refused());
        assert_eq!(read(folder, "berth-machines.service"), None);
    }
}
