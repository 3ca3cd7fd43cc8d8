//! Disks of a running machine that continue in overlays, alone and with the saved state of the machine.

use std::path::PathBuf;
use std::time::Duration;

use berth_qemu::block::{self, BlockError, ImageSnapshot, IoLimits, ObservedDisk, Unplugged};
use berth_qemu::hypervisor::StateFile;
use berth_qemu::machine::{Backing, DiskSpec, Format};
use berth_qemu::power::{self, RunState};
use berth_qemu::qcow2;
use berth_qemu::qmp::Qmp;
use berth_qemu::saved_state::{self, Transfer};
use serde_json::json;

use super::{Bench, MIB, until_state};

/// Creates the overlay that a disk continues in.
fn overlay_on(below: &DiskSpec, number: u32, size: u64) -> DiskSpec {
    let file = below.file.with_file_name(format!("{}.{number}.qcow2", below.id));
    let backing = Backing { file: below.file.clone(), format: Format::Qcow2, backing: None };
    qcow2::create_overlay(&file, size, &backing).expect("an overlay");
    DiskSpec { file, ..below.clone() }
}

#[tokio::test]
async fn disks_of_a_running_machine_continue_in_overlays_all_at_once_or_not_at_all() {
    for bench in Bench::all() {
        let (data, log) = (bench.new_disk("data"), bench.new_disk("log"));
        let (qmp, _events) = bench.launch().await;
        let mut overlays = Vec::new();
        for disk in [&data, &log] {
            bench.plug(&qmp, disk).await.expect("plugged");
            let overlay = overlay_on(disk, 1, 16 * MIB);
            bench.host.grant(&overlay.file, true).await.expect("granted");
            overlays.push(overlay);
        }
        let files = async || -> Vec<Option<PathBuf>> {
            let seen = block::disks(&qmp).await.expect("disks");
            let file = |id: &str| seen.iter().find(|disk| disk.id == id).and_then(|disk| disk.file.clone());
            vec![file("data"), file("log")]
        };
        let before = [&data, &log].map(|disk| Some(disk.file.clone()));
        let missing = DiskSpec { file: log.file.with_file_name("none.qcow2"), ..log.clone() };
        block::snapshot_disks(&qmp, &[overlays[0].clone(), missing], &[]).await.expect_err("no such file");
        assert_eq!(files().await, before, "neither is switched");
        assert!(block::snapshot_disks(&qmp, &overlays, &[]).await.expect("switched"));
        assert_eq!(files().await, [0, 1].map(|n: usize| Some(overlays[n].file.clone())));
        assert!(!block::snapshot_disks(&qmp, &overlays, &[]).await.expect("switched before"));
        let second = overlay_on(&overlays[1], 2, 16 * MIB);
        let torn = block::snapshot_disks(&qmp, &[overlays[0].clone(), second], &[]).await;
        assert!(matches!(torn, Err(BlockError::NotOneMoment { .. })), "{torn:?}");
        assert_eq!(files().await, [0, 1].map(|n: usize| Some(overlays[n].file.clone())));
        bench.end().await;
    }
}

#[tokio::test]
async fn snapshots_within_images_are_taken_of_all_disks_or_of_none() {
    for bench in Bench::all() {
        let (data, log) = (bench.new_disk("data"), bench.new_disk("log"));
        let (qmp, _events) = bench.launch().await;
        for disk in [&data, &log] {
            bench.plug(&qmp, disk).await.expect("plugged");
        }
        let snapshot = |disk: &str, name: &str| ImageSnapshot { disk: disk.into(), name: name.into() };
        let both = |name: &str| [snapshot("data", name), snapshot("log", name)];
        block::snapshot_disks(&qmp, &[], &both("s-1")).await.expect("taken");
        // The second one is refused, and the first one is removed again.
        let refused = [snapshot("data", "s-2"), snapshot("log", "s-1")];
        block::snapshot_disks(&qmp, &[], &refused).await.expect_err("it has this snapshot");
        block::snapshot_disks(&qmp, &[], &both("s-2")).await.expect("neither had it");
        let other = block::snapshot_disks(&qmp, &[], &[snapshot("none", "s-3")]).await;
        assert!(matches!(other, Err(BlockError::NoSuchDisk { .. })), "{other:?}");
        bench.end().await;
    }
}

/// As of a VM with a disk in a file and another one in Ceph.
#[tokio::test]
async fn one_disk_continues_in_an_overlay_and_another_has_a_snapshot_at_one_moment_or_neither() {
    for bench in Bench::all() {
        let (data, log) = (bench.new_disk("data"), bench.new_disk("log"));
        let (qmp, _events) = bench.launch().await;
        for disk in [&data, &log] {
            bench.plug(&qmp, disk).await.expect("plugged");
        }
        let overlay = overlay_on(&data, 1, 16 * MIB);
        bench.host.grant(&overlay.file, true).await.expect("granted");
        let overlays = [overlay.clone()];
        let of_log = |name: &str| [ImageSnapshot { disk: "log".into(), name: name.into() }];
        let file = async || -> Option<PathBuf> {
            let seen = block::disks(&qmp).await.expect("disks");
            seen.into_iter().find(|disk| disk.id == "data").and_then(|disk| disk.file)
        };
        assert!(block::snapshot_disks(&qmp, &[], &of_log("s-1")).await.expect("taken"));
        let refused = block::snapshot_disks(&qmp, &overlays, &of_log("s-1")).await;
        refused.expect_err("it has this snapshot");
        assert_eq!(file().await.as_ref(), Some(&data.file), "the other disk is not switched");
        assert!(block::snapshot_disks(&qmp, &overlays, &of_log("s-2")).await.expect("taken"));
        assert_eq!(file().await.as_ref(), Some(&overlay.file));
        let later = block::snapshot_disks(&qmp, &overlays, &of_log("s-3")).await;
        assert!(matches!(later, Err(BlockError::NotOneMoment { .. })), "{later:?}");
        assert!(!block::snapshot_disks(&qmp, &overlays, &[]).await.expect("switched before"));
        bench.end().await;
    }
}

/// A snapshot with memory: the disks are switched while the guest is still paused, and the guest of the state goes on on the former files.
#[tokio::test]
async fn disks_continue_in_overlays_between_the_end_of_a_save_and_the_guest_that_goes_on() {
    for mut bench in Bench::all() {
        let data = bench.new_disk("data");
        let state = bench.directory.path().join("saved.state");
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        let overlay = overlay_on(&data, 1, 16 * MIB);
        bench.host.grant(&overlay.file, true).await.expect("granted");
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Empty(&state)).await;
        lend.expect("given");
        saved_state::save(&qmp, true).await.expect("begun");
        until_state(&qmp, &RunState::PostMigrate).await;
        let switched = block::snapshot_disks(&qmp, std::slice::from_ref(&overlay), &[]).await;
        assert!(switched.expect("QEMU allows it in this state"));
        power::start(&qmp).await.expect("started again");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        let open = block::disks(&qmp).await.expect("disks");
        let file = open.into_iter().find(|disk| disk.id == "data").and_then(|disk| disk.file);
        assert_eq!(file.as_ref(), Some(&overlay.file), "the guest goes on on the new file");
        power::quit(&qmp).await.expect("ended");
        qmp.closed().await;
        bench.end().await;

        let restored = overlay_on(&data, 2, 16 * MIB);
        let backing = Backing { file: data.file.clone(), format: Format::Qcow2, backing: None };
        bench.spec.machine.disks[0].target = Some(0);
        bench.spec.machine.disks.push(DiskSpec { target: Some(1), backing: Some(backing), ..restored });
        bench.spec.files.from_saved_state = true;
        // As a snapshot keeps it: under another name as well.
        std::fs::hard_link(&state, bench.directory.path().join("kept.state")).expect("another name");
        let (qmp, _events) = bench.launch().await;
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&state)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        until_state(&qmp, &RunState::Paused).await;
        power::start(&qmp).await.expect("started");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        bench.end().await;
    }
}

/// Takes a snapshot with memory as far as QEMU is concerned. Returns the file with the state.
async fn save_and_switch(bench: &Bench, qmp: &Qmp, overlay: &DiskSpec, name: &str) -> PathBuf {
    let state = bench.directory.path().join(name);
    bench.host.grant(&overlay.file, true).await.expect("granted");
    let lend = bench.host.lend_state(qmp, &bench.spec.files.paths, StateFile::Empty(&state)).await;
    lend.expect("given");
    saved_state::save(qmp, true).await.expect("begun");
    until_state(qmp, &RunState::PostMigrate).await;
    assert_eq!(saved_state::transfer(qmp).await.expect("asked"), Transfer::Completed);
    assert!(block::snapshot_disks(qmp, std::slice::from_ref(overlay), &[]).await.expect("switched"));
    power::start(qmp).await.expect("started again");
    state
}

/// Writes to the disk `data` as its guest does; only in the real QEMU.
async fn write(bench: &Bench, qmp: &Qmp, pattern: u8) {
    if bench.real {
        let command = format!("qemu-io -d data \"write -P {pattern} 0 4k\"");
        let written = qmp.execute("human-monitor-command", json!({"command-line": command})).await;
        written.expect("written");
    }
}

/// Checks which of these patterns a file has; only one that the real QEMU wrote to.
fn assert_has(bench: &Bench, disk: &DiskSpec, patterns: &[u8]) {
    if !bench.real {
        return;
    }
    let bytes = std::fs::read(&disk.file).expect("read");
    let has = |pattern: u8| bytes.chunks(512).any(|sector| sector.iter().all(|byte| *byte == pattern));
    let found: Vec<u8> = [17, 34, 51, 68].into_iter().filter(|pattern| has(*pattern)).collect();
    assert_eq!(found, patterns, "{}", disk.file.display());
}

/// As a snapshot is finished: no QEMU writes to the file of the disk any more, and nothing may.
fn finish(bench: &Bench, disk: &DiskSpec) {
    if !bench.real {
        return;
    }
    let file = std::fs::File::open(&disk.file).expect("opened");
    // QEMU's lock of a file that it writes to.
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 101,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_GETLK(&mut lock)).expect("asked");
    assert_eq!(lock.l_type, libc::F_UNLCK as libc::c_short, "a QEMU writes to {}", disk.file.display());
    std::fs::set_permissions(&disk.file, std::os::unix::fs::PermissionsExt::from_mode(0o444)).expect("ours");
}

#[tokio::test]
async fn each_save_of_a_machine_is_of_its_own_moment_and_so_are_the_files_of_its_disk() {
    for mut bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        write(&bench, &qmp, 17).await;
        let first = overlay_on(&data, 1, 16 * MIB);
        save_and_switch(&bench, &qmp, &first, "first.state").await;
        finish(&bench, &data);
        write(&bench, &qmp, 34).await;
        let second = overlay_on(&first, 2, 16 * MIB);
        let state = save_and_switch(&bench, &qmp, &second, "second.state").await;
        finish(&bench, &first);
        write(&bench, &qmp, 51).await;
        for (disk, patterns) in [(&data, [17]), (&first, [34]), (&second, [51])] {
            assert_has(&bench, disk, &patterns);
        }
        power::quit(&qmp).await.expect("ended");
        qmp.closed().await;
        bench.end().await;

        let restored = overlay_on(&first, 3, 16 * MIB);
        let backing = chain_of(&[&first.file, &data.file]);
        bench.spec.machine.disks[0].target = Some(0);
        bench.spec.machine.disks.push(DiskSpec { target: Some(1), backing, ..restored.clone() });
        bench.spec.files.from_saved_state = true;
        let (qmp, _events) = bench.launch().await;
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&state)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        until_state(&qmp, &RunState::Paused).await;
        power::start(&qmp).await.expect("started");
        write(&bench, &qmp, 68).await;
        for (disk, patterns) in [(&first, [34]), (&second, [51]), (&restored, [68])] {
            assert_has(&bench, disk, &patterns);
        }
        bench.end().await;
    }
}

#[tokio::test]
async fn a_disk_of_a_running_machine_continues_in_an_overlay_and_is_grown_and_released_after_that() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        bench.plug(&qmp, &data).await.expect("plugged");
        let limits = IoLimits { iops: 100, ..IoLimits::default() };
        block::set_limits(&qmp, "data", &limits).await.expect("set");
        let first = overlay_on(&data, 1, 16 * MIB);
        bench.host.grant(&first.file, true).await.expect("granted");
        assert!(block::snapshot_disks(&qmp, std::slice::from_ref(&first), &[]).await.expect("switched"));
        assert!(
            !block::snapshot_disks(&qmp, std::slice::from_ref(&first), &[]).await.expect("switched before")
        );
        let seen = |disks: Vec<ObservedDisk>| disks.into_iter().find(|d| d.id == "data").expect("plugged");
        let now = seen(block::disks(&qmp).await.expect("disks"));
        assert_eq!((now.file.as_ref(), now.limits, now.read_only), (Some(&first.file), limits, false));
        block::resize(&qmp, "data", 20 * MIB).await.expect("grown");
        // Created before the disk grew.
        let second = overlay_on(&first, 2, 20 * MIB);
        bench.host.grant(&second.file, true).await.expect("granted");
        block::resize(&qmp, "data", 24 * MIB).await.expect("grown");
        assert!(block::snapshot_disks(&qmp, std::slice::from_ref(&second), &[]).await.expect("switched"));
        let now = seen(block::disks(&qmp).await.expect("disks"));
        assert_eq!((now.file.as_ref(), now.size), (Some(&second.file), 24 * MIB));
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        // Every file is released: each can be opened for writing again.
        for disk in [&data, &first, &second] {
            qcow2::grow(&disk.file, 32 * MIB).expect("nothing has it open");
        }
        let backing = Backing { file: first.file.clone(), format: Format::Qcow2, backing: None };
        let backing = Backing {
            backing: Some(Box::new(Backing {
                file: data.file.clone(),
                format: Format::Qcow2,
                backing: None,
            })),
            ..backing
        };
        bench.host.grant(&data.file, false).await.expect("granted");
        bench.host.grant(&first.file, false).await.expect("granted");
        let again = DiskSpec { backing: Some(backing), ..second.clone() };
        bench.plug(&qmp, &again).await.expect("plugged with the files below it");
        let missing = block::snapshot_disks(&qmp, &[DiskSpec { id: "none".into(), ..second }], &[]).await;
        assert!(matches!(missing, Err(BlockError::NoSuchDisk { .. })), "{missing:?}");
        bench.end().await;
    }
}

/// Returns a chain of these files, the nearest first.
fn chain_of(files: &[&PathBuf]) -> Option<Backing> {
    let (file, below) = files.split_first()?;
    let backing = chain_of(below).map(Box::new);
    Some(Backing { file: (*file).clone(), format: Format::Qcow2, backing })
}

#[tokio::test]
async fn a_disk_of_a_running_machine_gets_a_shorter_chain_and_closes_the_files_that_it_does_not_need() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        bench.plug(&qmp, &data).await.expect("plugged");
        let limits = IoLimits { iops: 100, ..IoLimits::default() };
        block::set_limits(&qmp, "data", &limits).await.expect("set");
        let mut disks = vec![data];
        let overlay = async |disks: &mut Vec<DiskSpec>| {
            let number = u32::try_from(disks.len()).expect("few");
            let next = overlay_on(disks.last().expect("one"), number, 16 * MIB);
            bench.host.grant(&next.file, true).await.expect("granted");
            assert!(block::snapshot_disks(&qmp, std::slice::from_ref(&next), &[]).await.expect("switched"));
            disks.push(next);
        };
        for _ in 0..3 {
            overlay(&mut disks).await;
        }
        let seen = async || {
            let found = block::disks(&qmp).await.expect("disks");
            found.into_iter().find(|disk| disk.id == "data").expect("plugged")
        };
        let before = seen().await;
        assert_eq!(before.files_below, 3);
        // The data of the first two files in one, as after a merge.
        let merged = disks[0].file.with_file_name("merged.qcow2");
        std::fs::copy(&disks[0].file, &merged).expect("copied");
        for file in [&disks[2].file, &merged] {
            bench.host.grant(file, false).await.expect("granted");
        }
        let shorter = DiskSpec { backing: chain_of(&[&disks[2].file, &merged]), ..disks[3].clone() };
        let other = DiskSpec { file: disks[0].file.clone(), ..shorter.clone() };
        let refused = block::shorten_chain(&qmp, &other).await;
        assert!(matches!(refused, Err(BlockError::Conflict { .. })), "{refused:?}");
        let gone = merged.with_file_name("gone.qcow2");
        let broken = DiskSpec { backing: chain_of(&[&gone]), ..shorter.clone() };
        block::shorten_chain(&qmp, &broken).await.expect_err("no such file");
        assert_eq!(seen().await, before, "as it was");
        for _ in 0..2 {
            block::shorten_chain(&qmp, &shorter).await.expect("shortened, or before");
            assert_eq!(seen().await, ObservedDisk { files_below: 2, ..before.clone() });
        }
        for released in &disks[..2] {
            qcow2::grow(&released.file, 20 * MIB).expect("nothing has it open");
        }
        // It goes on with snapshots, another chain, growth and its release.
        overlay(&mut disks).await;
        let shortest = DiskSpec { backing: chain_of(&[&merged]), ..disks[4].clone() };
        block::shorten_chain(&qmp, &shortest).await.expect("shortened");
        let now = seen().await;
        assert_eq!((now.files_below, now.file.as_ref(), now.limits), (1, Some(&disks[4].file), limits));
        block::resize(&qmp, "data", 24 * MIB).await.expect("grown");
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        for disk in &disks {
            qcow2::grow(&disk.file, 32 * MIB).expect("nothing has it open");
        }
        qcow2::grow(&merged, 32 * MIB).expect("nothing has it open");
        let longer = DiskSpec { backing: chain_of(&[&disks[2].file, &merged]), ..shortest.clone() };
        bench.plug(&qmp, &longer).await.expect("plugged with two files below it");
        assert_eq!(seen().await.files_below, 2);
        block::shorten_chain(&qmp, &shortest)
            .await
            .expect("the chain that it was plugged in with is replaced");
        assert_eq!(seen().await.files_below, 1);
        qcow2::grow(&disks[2].file, 48 * MIB).expect("nothing has it open");
        bench.end().await;
    }
}
