//! The states that snapshots keep.

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::linux::{LinuxConfig, LinuxSystem};
use crate::{Machines as _, Volumes as _};

const INSTANCE: &str = "i-1";

/// A host with an instance, whose machine has saved its state.
async fn host() -> (TempDir, LinuxSystem, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let system = LinuxSystem::open(LinuxConfig::new(folder.path())).expect("opened");
    system.write_journal(INSTANCE, &json!({})).await.expect("a folder for it");
    let saved = system.instance_directory(INSTANCE).join("saved.state");
    fs::write(&saved, b"memory").expect("saved");
    (folder, system, saved)
}

#[tokio::test]
async fn a_state_is_kept_with_its_note_until_it_is_removed() {
    let (_folder, system, saved) = host().await;
    assert_eq!(system.kept_state("s-1").await.expect("looked"), None);
    for _ in 0..2 {
        system.keep_state(INSTANCE, "s-1", &json!({"cpus": 2})).await.expect("kept, also once more");
        system.seal_kept_state("s-1").await.expect("durable");
        assert_eq!(system.kept_state("s-1").await.expect("looked"), Some(json!({"cpus": 2})));
    }
    system.seal_kept_state("s-2").await.expect_err("there is none");
    system.remove_state(INSTANCE).await.expect("the guest goes on");
    assert!(!saved.exists() && system.kept_state("s-1").await.expect("looked").is_some());
    for _ in 0..2 {
        system.remove_kept_state("s-1").await.expect("removed, also if there is none");
        assert_eq!(system.kept_state("s-1").await.expect("looked"), None);
    }
}

#[tokio::test]
async fn the_bytes_of_a_snapshot_are_those_of_its_memory_too() {
    let (_folder, system, saved) = host().await;
    assert!(system.snapshot_bytes().await.expect("measured").is_empty());
    fs::write(&saved, vec![1; 1 << 20]).expect("saved");
    system.keep_state(INSTANCE, "s-1", &json!({})).await.expect("kept");
    system.seal_kept_state("s-1").await.expect("durable");
    let used = system.snapshot_bytes().await.expect("measured");
    assert!(used.get("s-1").is_some_and(|bytes| *bytes >= 1 << 20), "{used:?}");
    system.remove_kept_state("s-1").await.expect("removed");
    assert!(system.snapshot_bytes().await.expect("measured").is_empty());
}

#[tokio::test]
async fn a_state_that_an_instance_is_given_stays_when_the_instance_has_used_it() {
    let (_folder, system, saved) = host().await;
    system.keep_state(INSTANCE, "s-1", &json!({})).await.expect("kept");
    for _ in 0..2 {
        system.lay_state(INSTANCE, "s-1").await.expect("given, also once more");
        assert_eq!(fs::read(&saved).expect("there"), b"memory");
    }
    system.remove_state(INSTANCE).await.expect("used");
    assert!(system.kept_state("s-1").await.expect("looked").is_some());
    system.remove_kept_state("s-1").await.expect("removed");
    assert!(system.lay_state(INSTANCE, "s-1").await.is_err(), "there is none any more");
}

#[tokio::test]
async fn every_state_that_is_kept_is_listed_also_one_of_which_only_the_note_is_left() {
    let (folder, system, _saved) = host().await;
    assert!(system.kept_states().await.expect("listed").is_empty(), "there is no folder yet");
    for id in ["s-1", "s-2"] {
        system.keep_state(INSTANCE, id, &json!({})).await.expect("kept");
    }
    fs::remove_file(folder.path().join("memory/s-2.state")).expect("as between two removals");
    fs::write(folder.path().join("memory/.other"), b"").expect("written");
    assert_eq!(system.kept_states().await.expect("listed"), ["s-1", "s-2"]);
    system.remove_kept_state("s-2").await.expect("removed");
    assert_eq!(system.kept_states().await.expect("listed"), ["s-1"]);
}

#[tokio::test]
async fn the_bootstrap_data_of_an_instance_is_that_of_its_last_start() {
    let (_folder, system, _saved) = host().await;
    assert!(system.bootstrap_data(INSTANCE).await.expect("looked").is_empty());
    for file in ["seed.img", "ignition.json"] {
        fs::write(system.instance_directory(INSTANCE).join(file), b"").expect("written");
    }
    assert_eq!(system.bootstrap_data(INSTANCE).await.expect("looked"), ["ignition", "seed"]);
}

#[tokio::test]
async fn a_crash_before_the_file_has_its_name_leaves_no_state() {
    let (folder, system, _saved) = host().await;
    system.keep_state(INSTANCE, "s-1", &json!({})).await.expect("kept");
    fs::remove_file(folder.path().join("memory/s-1.state")).expect("as before the link");
    assert_eq!(system.kept_state("s-1").await.expect("looked"), None);
    system.keep_state("i-none", "s-2", &json!({})).await.expect_err("there is nothing to keep");
    assert!(system.keep_state(INSTANCE, "../s", &json!({})).await.is_err(), "no name");
}
