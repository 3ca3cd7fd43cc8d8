//! Folders of pools on a real file system.

mod arriving;
mod silent;

use tempfile::TempDir;

use super::super::volumes::LinuxVolumes;
use super::*;
use crate::{NewTake, NewVolume, VolumeOwner};

const POOL: &str = "fast";
const ID: &str = "v-0123456789abcdef";

/// A state directory, and a folder of a pool beside it.
struct Fixture {
    top: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let top = tempfile::tempdir().expect("temporary folder");
        for folder in ["state/pools", "fast"] {
            fs::create_dir_all(top.path().join(folder)).expect("made");
        }
        Self { top }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    fn real(&self, path: &str) -> PathBuf {
        self.at(path).canonicalize().expect("it is there")
    }

    fn mapping(&self, pool: &str, folder: &str) -> PoolFolderMapping {
        PoolFolderMapping { pool: pool.to_owned(), path: self.at(folder) }
    }

    fn open(&self, mappings: &[PoolFolderMapping]) -> Result<PoolFolders> {
        PoolFolders::open(mappings, &self.at("state/pools"), &[&self.at("state")], None)
    }

    fn fast(&self) -> PoolFolders {
        self.open(&[self.mapping(POOL, "fast")]).expect("opened")
    }

    fn volumes(&self, folders: &PoolFolders) -> LinuxVolumes {
        let layout = Layout::new(self.at("state")).with_pool_places(folders.places());
        LinuxVolumes::new(layout, None).with_pool_folders(folders.clone())
    }

    /// Puts an empty folder in the place of the pool's, as when its file system is not mounted.
    fn unmount(&self) {
        fs::rename(self.at("fast"), self.at("unmounted")).expect("moved");
        fs::create_dir(self.at("fast")).expect("made");
    }

    fn mount(&self) {
        fs::remove_dir(self.at("fast")).expect("nothing was created in it");
        fs::rename(self.at("unmounted"), self.at("fast")).expect("moved");
    }
}

fn new() -> NewVolume {
    let owner =
        VolumeOwner { namespace: "n".to_owned(), name: "d".to_owned(), uid: None, image: None, source: None };
    NewVolume {
        encryption: None,
        pool: POOL.to_owned(),
        id: ID.to_owned(),
        size: Some(1 << 20),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner,
    }
}

fn away(result: Result<()>) -> String {
    match result {
        Err(SystemError::PoolAway { detail, .. }) => detail,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_without_its_marker_is_away_and_one_with_another_marker_too() {
    let record = |is_marked| Record { id: "a".to_owned(), folder: "/mnt/fast".into(), is_marked, host: None };
    let marker = |id: &str| Marker { pool: POOL.to_owned(), id: id.to_owned(), shared: false };
    let judged = |record: Option<Record>, marker: Option<Marker>| judge(record.as_ref(), marker.as_ref());
    assert_eq!(judged(None, None), Judgement::New);
    assert_eq!(judged(None, Some(marker("a"))), Judgement::OtherMarker, "it is that of another host");
    assert_eq!(judged(Some(record(true)), Some(marker("a"))), Judgement::There);
    assert_eq!(judged(Some(record(true)), Some(marker("b"))), Judgement::OtherMarker);
    assert_eq!(judged(Some(record(true)), None), Judgement::NoMarker);
    // A crash came between the record and the marker, or after it.
    assert_eq!(judged(Some(record(false)), None), Judgement::New);
    assert_eq!(judged(Some(record(false)), Some(marker("a"))), Judgement::New);
    assert_eq!(judged(Some(record(false)), Some(marker("b"))), Judgement::OtherMarker);
}

#[test]
fn disks_of_a_pool_are_in_its_folder_and_stay_there_when_the_agent_starts_again() {
    let f = Fixture::new();
    let made = f.volumes(&f.fast()).create(&new(), None).expect("made");
    assert_eq!(made.path, f.at("fast/volumes").join(format!("{ID}.qcow2")));
    assert!(f.at("fast").join(MARKER).exists() && !f.at("state/pools/fast").exists());
    let again = f.volumes(&f.fast());
    assert_eq!(again.volume(POOL, ID).expect("read").map(|volume| volume.path), Some(made.path));
    assert_eq!(again.volumes().expect("listed").len(), 1);
    let fast = f.fast();
    fs::rename(f.at("fast"), f.at("elsewhere")).expect("moved");
    assert!(away(fast.ensure_there(POOL)).contains("is its file system mounted"));
    let moved = f.open(&[f.mapping(POOL, "elsewhere")]).expect("opened");
    moved.ensure_there(POOL).expect("the marker identifies it wherever it is mounted");
    assert_eq!(f.open(&[]).expect("opened").real_paths(), [f.real("elsewhere")], "it is recorded");
}

#[test]
fn a_folder_that_was_marked_before_a_crash_is_not_taken_for_the_one_below_its_mount() {
    let f = Fixture::new();
    f.fast().ensure_there(POOL).expect("marked");
    let path = f.at("state/pools/fast.json");
    let record = files::read_json::<Record>(&path).expect("read").expect("there").expect("a record");
    let before_crash = Record { is_marked: false, ..record.clone() };
    files::write_json(&path, &before_crash, 0o600).expect("written");
    fs::rename(f.at("fast"), f.at("mounted")).expect("unmounted");
    fs::create_dir(f.at("fast")).expect("the folder below");
    let folders = f.fast();
    folders.ensure_there(POOL).expect("it is new");
    fs::remove_dir_all(f.at("fast")).expect("removed");
    fs::rename(f.at("mounted"), f.at("fast")).expect("mounted");
    assert!(away(folders.ensure_there(POOL)).contains("another pool"), "it has another identity");
    // Mounted after the crash, it is the same one.
    files::write_json(&path, &before_crash, 0o600).expect("written");
    let again = f.fast();
    again.ensure_there(POOL).expect("its marker was written");
    let now = files::read_json::<Record>(&path).expect("read").expect("there").expect("a record");
    assert_eq!(now, record);
}

#[test]
fn nothing_is_created_in_the_folder_of_an_unmounted_file_system_and_its_disks_are_not_lost() {
    let f = Fixture::new();
    let folders = f.fast();
    let volumes = f.volumes(&folders);
    volumes.create(&new(), None).expect("made");
    f.unmount();
    let error = volumes.volume(POOL, ID).expect_err("it is out of reach");
    assert_eq!(error.variant(), "PoolAway", "and not lost: {error}");
    let other = NewVolume { id: "v-other".to_owned(), ..new() };
    assert_eq!(volumes.create(&other, None).expect_err("it is away").variant(), "PoolAway");
    assert_eq!(volumes.trash(POOL, ID).expect_err("it is away").variant(), "PoolAway");
    let purged = volumes.purge(POOL, Duration::ZERO);
    assert_eq!(purged.expect_err("it is away").variant(), "PoolAway");
    assert!(volumes.volumes().expect("the others are listed").is_empty());
    assert!(volumes.based_on(&"ab".repeat(32)).expect("looked").is_some(), "no image is removed meanwhile");
    let layout = Layout::new(f.at("state")).with_pool_places(folders.places());
    assert!(folders.there(&layout).expect("listed").is_empty(), "no owner of a file in it changes");
    // An agent that starts meanwhile knows that there was a marker.
    let started = f.fast();
    assert!(away(started.ensure_there(POOL)).contains("is its file system mounted"));
    f.volumes(&started).forget_partial().expect("nothing is removed");
    f.mount();
    assert!(volumes.volume(POOL, ID).expect("read").is_some());
    started.ensure_there(POOL).expect("it is back");
    assert_eq!(started.there(&layout).expect("listed"), [POOL]);
}

#[tokio::test]
async fn a_folder_is_reported_with_its_space_or_with_the_reason_why_it_is_away() {
    let f = Fixture::new();
    let folders = f.fast();
    let there = folders.facts().await.remove(0);
    assert_eq!((there.pool.as_str(), there.problem), (POOL, None));
    assert!(there.total_bytes > 0 && there.free_bytes <= there.total_bytes);
    assert_eq!(folders.returned(&folders.facts().await), [POOL]);
    assert!(folders.returned(&folders.facts().await).is_empty(), "it was there before");
    folders.look_again(POOL);
    assert_eq!(folders.returned(&folders.facts().await), [POOL]);
    f.unmount();
    let gone = folders.facts().await.remove(0);
    assert!(gone.problem.is_some_and(|problem| problem.contains(MARKER)));
    assert_eq!((gone.total_bytes, gone.free_bytes), (0, 0));
    // Without the option: its disks are not looked for in the state directory.
    let unnamed = f.open(&[]).expect("opened");
    assert!(away(unnamed.ensure_there(POOL)).contains("without --pool-folder fast="));
    assert_eq!(unnamed.real_paths(), [f.real("fast")]);
}

#[test]
fn a_look_at_the_known_folders_changes_nothing() {
    let f = Fixture::new();
    let records = f.at("state/pools");
    assert!(known(&records).is_empty() && known(&f.at("nowhere")).is_empty());
    f.fast().ensure_there(POOL).expect("marked");
    assert!(known(&records)[POOL].as_ref().is_ok_and(|(total, free)| total >= free));
    f.unmount();
    assert!(known(&records)[POOL].as_ref().is_err_and(|why| why.contains(MARKER)));
    f.mount();
}

#[test]
fn the_folder_of_another_host_is_not_taken() {
    let f = Fixture::new();
    f.fast().ensure_there(POOL).expect("marked");
    fs::remove_file(f.at("state/pools/fast.json")).expect("the record of another state directory");
    assert!(away(f.fast().ensure_there(POOL)).contains("another pool or another host"));
    fs::remove_file(f.at("fast").join(MARKER)).expect("removed by its administrator");
    f.fast().ensure_there(POOL).expect("taken with its files");
}

/// Declares the pool as shared for a host.
fn declare(folders: &PoolFolders, host: &str, id: &str, marks: bool) {
    let shared = SharedPool { id: Some(id.to_owned()), host: host.to_owned(), marks, is_rbd: false };
    folders.declare(&BTreeMap::from([(POOL.to_owned(), Some(shared))]));
}

#[test]
fn the_folder_of_a_shared_pool_is_marked_once_and_each_host_has_its_files_in_a_folder_of_its_own() {
    let f = Fixture::new();
    fs::create_dir_all(f.at("other/pools")).expect("made");
    let others =
        || PoolFolders::open(&[f.mapping(POOL, "fast")], &f.at("other/pools"), &[], None).expect("opened");
    let (first, second) = (f.fast(), others());
    declare(&second, "b", "u", false);
    assert!(away(second.ensure_there(POOL)).contains("is its file system mounted"), "the other one marks it");
    assert!(!f.at("fast").join(MARKER).exists());
    declare(&first, "a", "u", true);
    let made = f.volumes(&first).create(&new(), None).expect("made");
    assert_eq!(made.path, f.at("fast/hosts/a/volumes").join(format!("{ID}.qcow2")));
    second.ensure_there(POOL).expect("it has the marker");
    assert!(f.volumes(&second).volumes().expect("listed").is_empty(), "the file is of the other host");
    // Before an agent knows the pools of the site.
    let again = others();
    assert_eq!(Layout::new(f.at("other")).with_pool_places(again.places()).pool(POOL), f.at("fast/hosts/b"));
    f.unmount();
    for folders in [&first, &second, &again] {
        assert!(away(folders.ensure_there(POOL)).contains("is its file system mounted"));
    }
    f.mount();
    again.ensure_there(POOL).expect("it is back");
    declare(&again, "b", "another", true);
    assert!(away(again.ensure_there(POOL)).contains("another pool"), "it is declared anew");
    let local = others();
    local.declare(&BTreeMap::from([(POOL.to_owned(), None)]));
    assert!(away(local.ensure_there(POOL)).contains("of type Shared"));
}

#[test]
fn a_folder_that_was_marked_before_its_pool_was_declared_becomes_a_shared_one_while_it_has_no_files() {
    let f = Fixture::new();
    let folders = f.fast();
    folders.ensure_there(POOL).expect("marked");
    declare(&folders, "a", "u", true);
    folders.ensure_there(POOL).expect("marked anew");
    let other = Fixture::new();
    let folders = other.fast();
    other.volumes(&folders).create(&new(), None).expect("made");
    declare(&folders, "a", "u", true);
    assert!(away(folders.ensure_there(POOL)).contains("another pool"), "its disks stay as they are");
}

#[test]
fn a_shared_pool_is_never_in_the_state_directory() {
    let f = Fixture::new();
    let folders = f.open(&[]).expect("opened");
    declare(&folders, "a", "u", true);
    assert!(away(folders.ensure_there(POOL)).contains("--pool-folder fast="));
}

#[test]
fn folders_that_contradict_each_other_or_the_state_directory_are_refused() {
    let f = Fixture::new();
    let refused = |mappings: &[PoolFolderMapping]| f.open(mappings).expect_err("refused").to_string();
    let (fast, inner) = (f.mapping(POOL, "fast"), f.mapping("inner", "fast/inner"));
    assert!(refused(&[fast.clone(), f.mapping(POOL, "other")]).contains("the same pool"));
    assert!(refused(&[fast.clone(), inner]).contains("another pool"));
    assert!(refused(&[f.mapping("own", "state/pools/own")]).contains("the state directory"));
    assert!(refused(&[f.mapping("all", "")]).contains("the state directory"));
    fs::create_dir_all(f.at("state/pools/fast/volumes")).expect("made");
    f.open(std::slice::from_ref(&fast)).expect("an empty pool has nothing to lose");
    fs::write(f.at("state/pools/fast/volumes/v-1.qcow2"), "").expect("a disk");
    assert!(refused(&[fast]).contains("has files in the state directory"));
}

#[test]
fn a_folder_that_qemus_user_cannot_reach_gets_no_disks() {
    let f = Fixture::new();
    for open in [f.top.path().to_owned(), f.at("fast")] {
        fs::set_permissions(open, PermissionsExt::from_mode(0o711)).expect("opened");
    }
    let user = Some(RunAs { uid: 2_100_000_000, gid: 2_100_000_000 });
    let folders = || {
        let mappings = [f.mapping(POOL, "fast")];
        PoolFolders::open(&mappings, &f.at("state/pools"), &[], user).expect("opened")
    };
    fs::set_permissions(f.at("fast"), PermissionsExt::from_mode(0o700)).expect("closed");
    let why = away(folders().ensure_there(POOL));
    assert!(why.contains("chmod o+x") && why.contains("fast"), "{why}");
    assert!(!f.at("fast").join(MARKER).exists());
    fs::set_permissions(f.at("fast"), PermissionsExt::from_mode(0o711)).expect("opened");
    fs::set_permissions(f.at("fast"), PermissionsExt::from_mode(0o777)).expect("opened to all");
    assert!(away(folders().ensure_there(POOL)).contains("chmod o-w"));
    fs::set_permissions(f.at("fast"), PermissionsExt::from_mode(0o711)).expect("closed to others");
    folders().ensure_there(POOL).expect("it can pass through");
}

#[test]
fn a_volume_of_a_lost_host_is_taken_from_its_folder_once_and_whole() {
    let f = Fixture::new();
    fs::create_dir_all(f.at("other/pools")).expect("made");
    let first = f.fast();
    let second =
        PoolFolders::open(&[f.mapping(POOL, "fast")], &f.at("other/pools"), &[], None).expect("opened");
    declare(&first, "a", "u", true);
    let theirs = f.volumes(&first);
    let made = theirs.create(&new(), None).expect("made");
    let layout = Layout::new(f.at("other")).with_pool_places(second.places());
    let volumes = LinuxVolumes::new(layout, None).with_pool_folders(second.clone());
    let take =
        NewTake { pool: POOL.to_owned(), id: ID.to_owned(), from: "a".to_owned(), uid: None, base: None };
    assert!(
        matches!(volumes.take_from_host(&take), Err(SystemError::PoolAway { .. })),
        "not known as shared"
    );
    declare(&second, "b", "u", false);
    for wrong in [
        NewTake { uid: Some("another".to_owned()), ..take.clone() },
        NewTake { base: Some("0".repeat(64)), ..take.clone() },
    ] {
        assert!(matches!(volumes.take_from_host(&wrong), Err(SystemError::VolumeDamaged { .. })));
    }
    let elsewhere = NewTake { from: "c".to_owned(), ..take.clone() };
    assert!(matches!(volumes.take_from_host(&elsewhere), Err(SystemError::VolumeLost { .. })));
    let outside = NewTake { from: "../a".to_owned(), ..take.clone() };
    assert!(matches!(volumes.take_from_host(&outside), Err(SystemError::PoolAway { .. })));
    assert!(made.path.exists(), "refused: nothing was touched");
    for _ in 0..2 {
        let taken = volumes.take_from_host(&take).expect("taken");
        assert_eq!(taken.path, f.at("fast/hosts/b/volumes").join(format!("{ID}.qcow2")));
        assert_eq!((taken.size, taken.owner), (made.size, made.owner.clone()));
    }
    assert!(!made.path.exists());
    assert!(theirs.volume(POOL, ID).expect("read").is_none(), "the lost host does not have it any more");
    // A crash came between the note and the renaming, and another one after it.
    let note = f.at("fast/hosts/b/volumes").join(format!("{ID}.json"));
    let written = fs::read_to_string(&note).expect("read");
    fs::write(f.at("fast/hosts/a/volumes").join(format!("{ID}.json")), &written).expect("written");
    fs::rename(f.at("fast/hosts/b/volumes").join(format!("{ID}.qcow2")), &made.path).expect("moved");
    let intent = written.replace("\"complete\": true", "\"complete\": false");
    assert_ne!(intent, written);
    fs::write(&note, &intent).expect("written");
    assert!(volumes.volume(POOL, ID).expect("read").is_none());
    volumes.take_from_host(&take).expect("taken again");
    fs::write(&note, &intent).expect("written");
    volumes.take_from_host(&take).expect("finished");
    assert_eq!(fs::read_to_string(&note).expect("read"), written);
    // A crash came before the note of the former host was removed, and the VM goes back there.
    fs::write(f.at("fast/hosts/a/volumes").join(format!("{ID}.json")), &written).expect("written");
    assert!(matches!(theirs.volume(POOL, ID), Err(SystemError::VolumeLost { .. })));
    let back = NewTake { from: "b".to_owned(), ..take };
    assert_eq!(theirs.take_from_host(&back).expect("taken back").path, made.path);
    assert!(volumes.volume(POOL, ID).expect("read").is_none() && made.path.exists());
}
