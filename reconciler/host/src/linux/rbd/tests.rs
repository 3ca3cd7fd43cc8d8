use std::path::Path;

use berth_qemu::machine::{Bus, Cache, Format};

use super::*;
use crate::VolumeOwner;

fn mapping(pool: &str, place: &str) -> RbdPoolMapping {
    format!("{pool}={place}").parse().expect("a mapping")
}

fn open(mappings: &[RbdPoolMapping], folders: &[PoolFolderMapping], access: &CephAccess) -> Result<RbdPools> {
    RbdPools::open(&Layout::new("/state"), mappings, folders, access, None)
}

fn disk(file: PathBuf) -> DiskSpec {
    DiskSpec {
        id: "v-1".to_owned(),
        file,
        format: Format::Raw,
        backing: None,
        serial: "v-1".to_owned(),
        wwn: None,
        boot: false,
        read_only: false,
        target: None,
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }
}

#[test]
fn an_image_of_a_volume_is_named_by_its_id() {
    let pools = open(&[mapping("fast", "vms/site")], &[], &CephAccess::default()).expect("opened");
    let pool = pools.get("fast").expect("there");
    assert_eq!(pool.spec(&RbdPool::name_of("v-1")), "vms/site/berth-v-1");
    let file = pool.image("berth-v-1").file();
    assert_eq!(file, Path::new("rbd:vms/site/berth-v-1:id=berth:conf=/state/rbd/fast/ceph.conf"));
    assert!(Layout::new("/state").pool_of(&file).is_none(), "it is no file of a pool");
    let options = "driver=raw,file.driver=rbd,file.pool=vms,file.namespace=site,file.image=berth-v-1,file.user=berth,\
                   file.conf=/state/rbd/fast/ceph.conf";
    assert_eq!(options_of(&pool.image("berth-v-1"), false), options);
    let encrypted = options.replace("driver=raw,", "driver=luks,key-secret=key,");
    assert_eq!(options_of(&pool.image("berth-v-1"), true), encrypted);
    assert!(pools.refuse("fast", "it cannot").is_err() && pools.refuse("default", "it cannot").is_ok());
}

#[test]
fn a_pool_has_one_place_and_the_user_a_name() {
    let folder: PoolFolderMapping = "fast=/mnt/fast".parse().expect("a mapping");
    let access = CephAccess::default();
    assert!(open(&[mapping("fast", "vms")], &[folder], &access).is_err());
    assert!(open(&[mapping("fast", "vms"), mapping("fast", "hdd")], &[], &access).is_err());
    let odd = CephAccess { user: "a:b".to_owned(), ..access.clone() };
    assert!(open(&[mapping("fast", "vms")], &[], &odd).is_err());
    assert!(open(&[], &[], &odd).is_ok(), "it is not used");
}

#[tokio::test]
async fn a_pool_that_is_not_declared_as_one_of_ceph_is_away_and_changes_nothing() {
    let pools = open(&[mapping("fast", "vms")], &[], &CephAccess::default()).expect("opened");
    let pool = pools.get("fast").expect("there");
    let away = |result: Result<()>| matches!(result, Err(SystemError::PoolAway { .. }));
    assert!(away(pool.ensure_there().await), "not known yet");
    let shared = SharedPool { id: Some("u".to_owned()), host: "a".to_owned(), marks: true, is_rbd: false };
    pools.declare(&BTreeMap::from([("fast".to_owned(), Some(shared.clone()))]));
    assert!(away(pool.ensure_there().await), "a folder that hosts share");
    let new = SharedPool { id: None, is_rbd: true, ..shared };
    pools.declare(&BTreeMap::from([("fast".to_owned(), Some(new))]));
    assert!(away(pool.ensure_there().await), "it has no identity yet");
    let facts = pools.facts().await;
    assert_eq!(facts[0].path, Path::new("rbd:vms"));
    assert!(facts[0].problem.is_some() && facts[0].total_bytes == 0);
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_holds_up_one_look_and_not_all_that_ask() {
    let pools = open(&[mapping("fast", "vms")], &[], &CephAccess::default()).expect("opened");
    let pool = pools.get("fast").expect("there");
    let earlier = Instant::now().checked_sub(2 * AWAY_FOR).expect("this machine is on for longer");
    *locked(&pool.seen) = Some((earlier, Err("Ceph does not answer".to_owned())));
    let look = pool.looking.lock().await;
    let asked = tokio::time::timeout(Duration::from_secs(5), pool.ensure_there()).await.expect("at once");
    assert!(matches!(asked, Err(SystemError::PoolAway { .. })));
    drop(look);
}

#[tokio::test]
async fn a_machine_starts_on_no_image_that_is_not_this_hosts() {
    let pools = open(&[mapping("fast", "vms")], &[], &CephAccess::default()).expect("opened");
    let pool = pools.get("fast").expect("there");
    let in_ceph = pools.ensure_own(&[disk(pool.image("berth-v-1").file())]).await;
    assert!(matches!(in_ceph, Err(SystemError::VolumeLost { .. })), "{in_ceph:?}");
    assert!(pools.ensure_own(&[disk("/pool/v-1.raw".into())]).await.is_ok());
}

/// The note of a volume whose image is complete.
fn whole() -> note::Note {
    let owner =
        VolumeOwner { namespace: "n".to_owned(), name: "d".to_owned(), uid: None, image: None, source: None };
    note::Note {
        volume_id: "v-1".to_owned(),
        host: "a".to_owned(),
        owner,
        base: None,
        complete: true,
        retained: false,
        deleted_at: None,
        deleted_after: None,
        removing: false,
        restores: Vec::new(),
        restoring: None,
        unwritten_since: None,
        luks: None,
    }
}

#[tokio::test]
async fn a_machine_starts_on_no_image_whose_restore_has_not_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mappings, access) = ([mapping("fast", "vms")], CephAccess::default());
    let pools = RbdPools::open(&Layout::new(folder.path()), &mappings, &[], &access, None).expect("opened");
    let pool = pools.get("fast").expect("there");
    let restoring = Some(note::Restoring { snapshot: "s-1".to_owned(), size: 1 << 20 });
    let note = note::Note { restoring, ..whole() };
    pool.write_note(&note).await.expect("written");
    let started = pools.ensure_own(&[disk(pool.image("berth-v-1").file())]).await;
    assert!(matches!(started, Err(SystemError::VolumeBusy { .. })), "{started:?}");
    let trashed = note::Note { deleted_at: Some(jiff::Timestamp::UNIX_EPOCH), ..note.clone() };
    assert!(trashed.restores_in_trash() && !note.restores_in_trash());
    pool.write_note(&trashed).await.expect("written");
    assert!(pool.restoring("v-1").await.expect("read").is_some(), "it goes on when the disk comes back");
    assert!(!note.text().contains("restoring"), "the next host has the disk only once it has no snapshots");
}

#[tokio::test]
async fn a_restored_image_has_the_data_of_its_snapshot_until_a_machine_may_write_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mappings, access) = ([mapping("fast", "vms")], CephAccess::default());
    let pools = RbdPools::open(&Layout::new(folder.path()), &mappings, &[], &access, None).expect("opened");
    let pool = pools.get("fast").expect("there");
    let note = note::Note { unwritten_since: Some("s-1".to_owned()), ..whole() };
    pool.write_note(&note).await.expect("written");
    assert!(pool.is_as_in_snapshot("v-1", "s-1").await.expect("read"));
    assert!(!pool.is_as_in_snapshot("v-1", "s-2").await.expect("read"), "it was restored from another one");
    assert!(!pool.is_as_in_snapshot("v-2", "s-1").await.expect("read"), "it is no volume");
    assert!(!note.text().contains("unwritten"), "the next host does not know it");
    pool.note_use("v-1").await.expect("noted");
    assert!(!pool.is_as_in_snapshot("v-1", "s-1").await.expect("read"), "a machine was started on it");
    let restored = note::Restoring { snapshot: "s-1".to_owned(), size: 1 << 20 };
    pool.write_note(&note::Note { restoring: Some(restored), ..note }).await.expect("written");
    assert!(!pool.is_as_in_snapshot("v-1", "s-1").await.expect("read"), "it is being restored again");
}

#[test]
fn snapshots_of_one_moment_are_divided_by_their_pools() {
    let mappings = [mapping("fast", "vms"), mapping("big", "hdd")];
    let pools = open(&mappings, &[], &CephAccess::default()).expect("opened");
    let new = |pool: &str| NewSnapshot {
        pool: pool.to_owned(),
        id: "s-1".to_owned(),
        volume: "v-1".to_owned(),
        owner: None,
    };
    let (in_ceph, files) = pools.divide(&[new("default"), new("slow")]);
    assert_eq!((in_ceph.len(), files), (0, vec![new("default"), new("slow")]));
    let (in_ceph, files) = pools.divide(&[new("fast"), new("default"), new("big"), new("fast")]);
    let of_pools: Vec<Vec<NewSnapshot>> = in_ceph.into_iter().map(|(_, of_pool)| of_pool).collect();
    assert_eq!(of_pools, [vec![new("big")], vec![new("fast"), new("fast")]]);
    assert_eq!(files, [new("default")]);
}

#[test]
fn a_volume_is_made_or_removed_by_one_call_at_a_time() {
    let pools = open(&[mapping("fast", "vms")], &[], &CephAccess::default()).expect("opened");
    let pool = pools.get("fast").expect("there");
    let first = pool.alone("v-1").expect("free");
    assert!(pool.alone("v-1").is_none() && pool.alone("v-2").is_some());
    drop(first);
    assert!(pool.alone("v-1").is_some());
}
