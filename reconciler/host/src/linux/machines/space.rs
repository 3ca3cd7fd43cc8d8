//! The space that the files of instances take.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::files::{self, blocking};
use super::super::layout::{Layout, is_name};
use super::{LinuxMachines, Result};

/// The most files of one folder that are counted: a program of the TPM that a guest took over could make any number.
const MOST_FILES: usize = 256;

impl LinuxMachines {
    pub(in super::super) async fn instance_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let layout = self.layout.clone();
        blocking(move || bytes_of_all(&layout)).await
    }
}

fn bytes_of_all(layout: &Layout) -> Result<BTreeMap<String, u64>> {
    let names = files::names(&layout.instances())?;
    let of =
        |instance: &str| bytes_in(&layout.instance(instance)).saturating_add(bytes_in(&layout.tpm(instance)));
    Ok(names.into_iter().filter(|name| is_name(name)).map(|name| (name.clone(), of(&name))).collect())
}

/// Returns the bytes of the files in a folder, not of those in its folders. Links are not followed, and a folder or a file that was removed
/// since takes none.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().take(MOST_FILES).flatten();
    let files =
        entries.filter_map(|entry| fs::symlink_metadata(entry.path()).ok()).filter(fs::Metadata::is_file);
    files.fold(0_u64, |sum, file| sum.saturating_add(file.blocks().saturating_mul(512)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_files_of_an_instance_and_of_its_tpm_are_counted_and_no_links() {
        let root = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(root.path());
        let (own, tpm) = (layout.instance("i-1"), layout.tpm("i-1"));
        fs::create_dir_all(&tpm).expect("made");
        fs::create_dir_all(layout.bases("i-1")).expect("made");
        let data = vec![1_u8; 1 << 20];
        let large = root.path().join("large");
        for file in
            [&own.join("saved.state"), &tpm.join("tpm2-00.permall"), &layout.bases("i-1").join("ab"), &large]
        {
            fs::write(file, &data).expect("written");
        }
        symlink(&large, own.join("link")).expect("made");
        let found = bytes_of_all(&layout).expect("measured");
        let bytes = found["i-1"];
        assert!((2 << 20..3 << 20).contains(&bytes), "{found:?}");
    }
}
