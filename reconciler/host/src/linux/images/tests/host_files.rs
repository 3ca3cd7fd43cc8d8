//! Images from files of the host, on file systems whose files can have data in common, and on another one.

use std::os::unix::fs::FileExt;

use super::super::super::reflink::tests::{BTRFS, EXT4, FileSystem, XFS, is_shared, on_file_system};
use super::*;

#[test]
fn an_image_from_a_file_has_its_data_in_common_with_it_where_the_file_system_can_do_that() {
    for kind in [XFS, BTRFS, EXT4] {
        on_file_system(kind, |disk| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(pulls(kind, disk));
        });
    }
}

/// Pulls a file of the file system with the cache, and one of another file system.
async fn pulls(kind: FileSystem, disk: &Path) {
    let (given, elsewhere) = (disk.join("given"), tempfile::tempdir().expect("temporary folder"));
    kind.make_folder(&given);
    let folders = vec![given.clone(), elsewhere.path().to_owned()];
    let images = with_rules(&disk.join("state"), 1 << 30, ImageRules { folders, ..ImageRules::default() });
    for (folder, length, shares) in
        [(given.as_path(), 3 * MIB, kind.shares), (elsewhere.path(), 2 * MIB, false)]
    {
        let (bytes, path) = (raw(length), folder.join("disk.img"));
        fs::write(&path, &bytes).expect("written");
        let url = reqwest::Url::from_file_path(&path).expect("absolute").to_string();
        let source = source(url, &bytes, Format::Raw);
        let facts = images.pull(&source, &Credentials::default(), &quiet()).await.expect("pulled");
        assert_eq!(is_shared(&facts.path), shares, "{kind:?}: {}", folder.display());
        // Later changes of the file do not show in the image.
        let file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[0; 4096], 0).expect("written");
        assert!(fs::read(&facts.path).expect("read") == bytes, "{kind:?}: {}", folder.display());
    }
}
