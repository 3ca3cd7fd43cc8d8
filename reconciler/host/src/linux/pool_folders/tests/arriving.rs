//! Volumes whose guest is about to come from another host.

use std::os::unix::fs::MetadataExt;

use super::*;

#[test]
fn a_volume_whose_guest_comes_is_the_other_hosts_until_it_is_taken() {
    let f = Fixture::new();
    fs::create_dir_all(f.at("other/pools")).expect("made");
    let first = f.fast();
    let second =
        PoolFolders::open(&[f.mapping(POOL, "fast")], &f.at("other/pools"), &[], None).expect("opened");
    declare(&first, "a", "u", true);
    declare(&second, "b", "u", false);
    let theirs = f.volumes(&first);
    let made = theirs.create(&new(), None).expect("made");
    let layout = Layout::new(f.at("other")).with_pool_places(second.places());
    let volumes = LinuxVolumes::new(layout, None).with_pool_folders(second.clone());
    let take =
        NewTake { pool: POOL.to_owned(), id: ID.to_owned(), from: "a".to_owned(), uid: None, base: None };
    let file = f.at("fast/hosts/b/volumes").join(format!("{ID}.qcow2"));
    let is_one_file = || {
        let of = |path: &Path| fs::metadata(path).map(|about| about.ino()).ok();
        of(&file).is_some() && of(&file) == of(&made.path)
    };
    // Repeated, as after a crash.
    for _ in 0..2 {
        let arriving = volumes.prepare_arriving(&take).expect("prepared");
        assert_eq!((arriving.path.as_path(), arriving.size), (file.as_path(), made.size));
        assert!(is_one_file());
        assert!(volumes.volume(POOL, ID).expect("read").is_none(), "it is none of this host yet");
        assert!(volumes.volumes().expect("listed").is_empty(), "and no orphan");
        assert!(theirs.volume(POOL, ID).expect("read").is_some(), "it is the other host's");
    }
    for _ in 0..2 {
        volumes.drop_arriving(POOL, ID).expect("dropped");
        assert!(!file.exists() && made.path.exists());
    }
    assert!(theirs.volume(POOL, ID).expect("read").is_some(), "as it was");
    volumes.prepare_arriving(&take).expect("prepared again");
    for _ in 0..2 {
        let taken = volumes.take_from_host(&take).expect("taken");
        assert_eq!((taken.path.as_path(), taken.size), (file.as_path(), made.size));
    }
    assert!(!made.path.exists());
    assert!(theirs.volume(POOL, ID).expect("read").is_none(), "the other host does not have it any more");
    volumes.drop_arriving(POOL, ID).expect("nothing to drop");
    assert!(file.exists(), "what was taken stays");
    let again = volumes.prepare_arriving(&take);
    assert!(matches!(again, Err(SystemError::VolumeDamaged { .. })), "{again:?}");
}

#[test]
fn a_link_in_the_folder_of_another_host_gets_no_second_name() {
    let f = Fixture::new();
    fs::create_dir_all(f.at("other/pools")).expect("made");
    let first = f.fast();
    let second =
        PoolFolders::open(&[f.mapping(POOL, "fast")], &f.at("other/pools"), &[], None).expect("opened");
    declare(&first, "a", "u", true);
    declare(&second, "b", "u", false);
    let made = f.volumes(&first).create(&new(), None).expect("made");
    let layout = Layout::new(f.at("other")).with_pool_places(second.places());
    let volumes = LinuxVolumes::new(layout, None).with_pool_folders(second.clone());
    let elsewhere = f.at("elsewhere");
    fs::rename(&made.path, &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, &made.path).expect("linked");
    let take =
        NewTake { pool: POOL.to_owned(), id: ID.to_owned(), from: "a".to_owned(), uid: None, base: None };
    let refused = volumes.prepare_arriving(&take);
    assert!(matches!(refused, Err(SystemError::VolumeDamaged { .. })), "{refused:?}");
    assert!(!f.at("fast/hosts/b/volumes").join(format!("{ID}.qcow2")).exists());
}
