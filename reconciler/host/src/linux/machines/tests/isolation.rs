//! The reach of a QEMU that a guest has taken over. Needs root: otherwise all QEMU processes run as the test's own
//! user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use berth_qemu::block;
use berth_qemu::machine::Backing;
use nix::unistd::Uid;
use serde_json::json;

use super::super::super::shared_user;
use super::*;

async fn root_host() -> Option<(TempDir, LinuxSystem)> {
    if !Uid::effective().is_root() {
        eprintln!("skipped: only root can run QEMU as other users");
        return None;
    }
    host().await
}

/// Creates an image in the cache.
fn image(folder: &Path, digit: char) -> String {
    let sha256 = digit.to_string().repeat(64);
    let path = folder.join("images").join(&sha256);
    berth_qemu::qcow2::create(&path, 1 << 20).expect("made");
    let bytes = fs::metadata(&path).expect("there").len();
    let sidecar = json!({"format": "Qcow2", "virtual_size": 1 << 20, "bytes": bytes});
    fs::write(path.with_extension("json"), sidecar.to_string()).expect("written");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o440)).expect("as the cache does");
    sha256
}

async fn disk(system: &LinuxSystem, id: &str, image: Option<&str>) -> DiskSpec {
    let owner =
        VolumeOwner { namespace: "n".to_owned(), name: id.to_owned(), uid: None, image: None, source: None };
    let (id, base) = (format!("v-{id}"), image.map(str::to_owned));
    let new = NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: id.clone(),
        size: Some(1 << 20),
        base,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner,
    };
    let volume = system.create_volume(&new).await.expect("made");
    DiskSpec {
        id: id.clone(),
        file: volume.path,
        format: Format::Qcow2,
        backing: volume.backing,
        serial: id,
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

/// Launches a machine with its own disk on its own image.
async fn launch(
    system: &LinuxSystem,
    folder: &Path,
    name: &str,
    digit: char,
) -> (String, LaunchRequest, ProcessFacts) {
    let instance = instance();
    let sha256 = image(folder, digit);
    let root = disk(system, name, Some(&sha256)).await;
    let mut config = machine(system, &instance, Firmware::Bios).await;
    config.machine.disks = vec![root];
    system.write_journal(&instance, &json!({"secret": name})).await.expect("journal");
    let process = system.launch(&config).await.expect("started");
    (instance, config, process)
}

fn ids(process: &ProcessFacts) -> (u32, u32) {
    let metadata = fs::metadata(format!("/proc/{}", process.identity.pid)).expect("it runs");
    (metadata.uid(), metadata.gid())
}

/// Whether this user can run the script on a file, with the permissions of all its parent directories.
fn can(user: (u32, u32), script: &str, path: &Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={}", user.0), &format!("--regid={}", user.1), "--clear-groups"]);
    command.args(["sh", "-c", &format!("{script} 2>/dev/null"), "sh"]).arg(path);
    command.status().expect("setpriv runs").success()
}

const READ: &str = "head -c 1 \"$1\" >/dev/null";
const WRITE: &str = ": >>\"$1\"";
const SEE: &str = "test -e \"$1\"";

#[tokio::test]
async fn a_qemu_reaches_its_own_files_and_none_of_anothers() {
    let Some((folder, system)) = root_host().await else { return };
    let folder = folder.path();
    let (a, config_a, process_a) = launch(&system, folder, "a", 'a').await;
    let (b, _, process_b) = launch(&system, folder, "b", 'b').await;
    let (user_a, user_b) = (ids(&process_a), ids(&process_b));
    assert!(user_a.0 != user_b.0 && user_a.1 != user_b.1, "{user_a:?} {user_b:?}");
    assert_eq!(user_a.0, user_a.1);
    let home = |instance: &str| folder.join("instances").join(instance);
    let volume = |name: &str| folder.join("pools/default/volumes").join(format!("v-{name}.qcow2"));
    let base = |instance: &str, digit: char| home(instance).join("images").join(digit.to_string().repeat(64));

    // Permitted accesses, which give meaning to the refusals below.
    assert!(can(user_b, READ, &volume("b")) && can(user_b, WRITE, &volume("b")));
    assert!(can(user_b, READ, &home(&b).join("seed.img")) && can(user_b, READ, &base(&b, 'b')));
    assert!(
        can(user_b, SEE, &home(&b).join("run/qmp.sock")) && can(user_b, WRITE, &home(&b).join("serial.log"))
    );

    for file in ["seed.img", "run/qmp.sock", "run/qga.sock", "serial.log", "qemu.log", "journal.json"] {
        let file = home(&a).join(file);
        assert!(file.exists() && !can(user_b, SEE, &file), "{} is reached", file.display());
    }
    assert!(!can(user_b, SEE, &base(&a, 'a')));
    assert!(!can(user_b, READ, &volume("a")) && !can(user_b, WRITE, &volume("a")));
    for digit in ['a', 'b'] {
        // Even the existence of another tenant's image is hidden.
        assert!(!can(user_b, SEE, &folder.join("images").join(digit.to_string().repeat(64))));
    }
    for own in ["seed.img", "journal.json", "user.json", "process.json", "qemu.log"] {
        assert!(!can(user_b, WRITE, &home(&b).join(own)), "{own} is ours");
    }
    assert!(!can(user_b, "mv \"$1\" \"$1.x\"", &home(&b).join("serial.log")), "nor put in another's place");

    // From inside, by its own monitor: world-readable files of the host are inaccessible too.
    let (qmp, _events) = system.connect(&b).await.expect("a monitor");
    let open = |file: &str| {
        json!({"driver": "raw", "node-name": "probe", "read-only": true,
               "file": {"driver": "file", "filename": file}})
    };
    if landlock_works() {
        for file in ["/etc/passwd", "/proc/self/status", "/proc/version"] {
            let refused = qmp.execute("blockdev-add", open(file)).await.expect_err("refused");
            assert!(refused.to_string().contains("Permission denied"), "{refused}");
        }
    }
    let foreign = open(&volume("a").display().to_string());
    assert!(qmp.execute("blockdev-add", foreign).await.is_err());
    drop(qmp);
    let net = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs");
    let (ours, net_a) = (fs::read_link("/proc/self/ns/net").expect("ours"), net(process_a.identity.pid));
    assert!(net_a != ours && net_a != net(process_b.identity.pid));
    // Sockets that every user may connect to are hidden. The temporary directory is not: it contains this host's state.
    let seen = |folder: &str| fs::read_dir(format!("/proc/{}/root{folder}", process_a.identity.pid));
    for folder in ["/run", "/root", "/home"].into_iter().filter(|folder| Path::new(folder).is_dir()) {
        assert_eq!(seen(folder).expect("it runs").count(), 0, "{folder}");
    }
    let devices = fs::read_to_string(format!("/proc/{}/net/dev", process_a.identity.pid)).expect("it runs");
    let names: Vec<&str> =
        devices.lines().skip(2).filter_map(|l| l.split(':').next()).map(str::trim).collect();
    assert!(
        names.iter().all(|name| [
            "lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"
        ]
        .contains(name)),
        "{names:?}"
    );

    system.kill(&a, GRACE).await.expect("ended");
    assert_eq!(fs::metadata(volume("a")).expect("there").uid(), 0, "a disk that is not attached is ours");
    assert_eq!(ids(&system.launch(&config_a).await.expect("again")), user_a, "a user is kept");
    for instance in [a, b] {
        system.kill(&instance, GRACE).await.expect("ended");
        system.remove_instance(&instance).await.expect("removed");
    }
}

fn landlock_works() -> bool {
    // This file lists the kernel's symbols, system calls included.
    fs::read_to_string("/proc/kallsyms").is_ok_and(|symbols| symbols.contains("landlock_restrict_self"))
}

#[tokio::test]
async fn a_disk_is_a_machines_for_as_long_as_it_is_plugged_in() {
    let Some((folder, system)) = root_host().await else { return };
    let (instance, _, process) = launch(&system, folder.path(), "boot", 'c').await;
    let data = disk(&system, "data", Some(&image(folder.path(), 'd'))).await;
    let owner = || fs::metadata(&data.file).expect("there").uid();
    assert_eq!(owner(), 0);
    let lent = system.grant_disk(&instance, &data).await.expect("lent");
    assert_eq!(owner(), ids(&process).0);
    let Some(Backing { file, .. }) = &lent.backing else { panic!("{lent:?}") };
    assert!(file.starts_with(folder.path().join("instances").join(&instance)), "{}", file.display());
    let (qmp, _events) = system.connect(&instance).await.expect("a monitor");
    block::plug(&qmp, &lent).await.expect("plugged in");
    block::plug(&qmp, &system.grant_disk(&instance, &data).await.expect("again")).await.expect("as it is");
    qmp.execute("device_del", json!({"id": data.id})).await.expect("asked");
    // The machine has not begun to run: no guest has to release the disk.
    let _ = block::unplug(&qmp, &data.id, GRACE).await;
    system.revoke_disk(&instance, &data.id).await.expect("taken back");
    assert_eq!(owner(), 0);
    assert_ne!(
        fs::metadata(folder.path().join("pools/default/volumes/v-boot.qcow2")).expect("there").uid(),
        0
    );
    drop(qmp);
    system.kill(&instance, GRACE).await.expect("ended");
}

#[tokio::test]
async fn logs_are_cut_while_the_machine_runs() {
    use std::io::Write;
    let Some((folder, system)) = root_host().await else { return };
    let (instance, _, _) = launch(&system, folder.path(), "noisy", 'e').await;
    let home = folder.path().join("instances").join(&instance);
    for name in ["serial.log", "serial4.log", "qemu.log"] {
        let log = home.join(name);
        // Opened like QEMU opens it: for appending.
        let mut writer = fs::OpenOptions::new().append(true).create(true).open(&log).expect("opened");
        for round in 0..4 {
            writer.write_all(&vec![b'x'; 3000]).expect("written");
            writer.write_all(format!("\nround {round}\n").as_bytes()).expect("written");
            logs::cut_all(&system.layout, 4096);
            assert!(fs::metadata(&log).expect("there").len() <= 4096);
        }
        let kept = fs::read_to_string(home.join(format!("{name}.1"))).expect("kept");
        assert!(kept.len() <= 4096 && kept.ends_with("round 3\n"), "the end is kept");
    }
    assert_eq!(fs::metadata(home.join("serial.log.1")).expect("there").permissions().mode() & 0o777, 0o600);
    system.kill(&instance, GRACE).await.expect("ended");
}

#[tokio::test]
async fn a_qemu_that_hides_its_command_line_is_listed_by_the_record_of_its_start() {
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    let mut hidden = Command::new("sleep").arg("60").spawn().expect("started");
    let stat = fs::read_to_string(format!("/proc/{}/stat", hidden.id())).expect("it runs");
    let start_time =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).expect("a time");
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("read");
    let identity = ProcessIdentity {
        pid: i32::try_from(hidden.id()).expect("a pid"),
        start_time: start_time.parse().expect("a number"),
        boot_id: boot_id.trim().to_owned(),
    };
    system.write_journal(&instance, &json!({"version": 1})).await.expect("journal");
    let record = json!({"identity": identity, "started_at": "2026-01-02T03:04:05Z"});
    let path = folder.path().join("instances").join(&instance).join("process.json");
    fs::write(path, record.to_string()).expect("written");
    let process = async || system.instances().await.expect("list").remove(0).process.map(|p| p.identity);
    assert_eq!(process().await, Some(identity));
    hidden.kill().expect("killed");
    hidden.wait().expect("ended");
    assert_eq!(process().await, None);
}

/// As the previous build started machines: one user for all, and all files that QEMU writes in QEMU's own directory.
#[tokio::test]
async fn a_machine_that_an_older_build_started_is_taken_over_as_it_is_and_has_its_own_user_after_its_next_start()
 {
    let Some((folder, system)) = root_host().await else { return };
    let instance = instance();
    let home = folder.path().join("instances").join(&instance);
    fs::create_dir_all(&home).expect("made");
    let mut config = machine(&system, &instance, Firmware::Bios).await;
    let root = disk(&system, "old", Some(&image(folder.path(), 'f'))).await;
    config.machine.disks = vec![root.clone()];
    let old = LocalHypervisor::discover().expect("installed").with_run_as(shared_user());
    let shared = shared_user().expect("we are root");
    let cached = folder.path().join("images").join("f".repeat(64));
    std::os::unix::fs::chown(&cached, Some(0), Some(shared.gid)).expect("lent");
    let paths = MachinePaths::in_directory(home.join("run"));
    for name in ["qmp.sock", "rescue.sock", "qga.sock", "serial.sock", "serial.log", "qemu.log"] {
        symlink(Path::new("run").join(name), home.join(name)).expect("linked");
    }
    let spec = LaunchSpec {
        machine: MachineSpec { name: "n/old".to_owned(), ..config.machine.clone() },
        files: MachineFiles::new(paths),
        affinity: Default::default(),
    };
    let identity = old.launch(&spec, Limits::default()).await.expect("started the old way");
    let record = json!({"identity": identity, "started_at": "2026-01-02T03:04:05Z"});
    fs::write(home.join("process.json"), record.to_string()).expect("written");
    system.write_journal(&instance, &json!({"version": 1})).await.expect("journal");

    let again = LinuxSystem::open(LinuxConfig::new(folder.path())).expect("the new build starts");
    let found = again.process(&instance).await.expect("looked").expect("it runs");
    assert_eq!(found.identity, identity);
    assert_eq!(again.launch(&config).await.expect("it runs already").identity, identity);
    let instances = again.instances().await.expect("list");
    assert!(instances.iter().any(|i| i.process.as_ref().is_some_and(|p| p.identity == identity)));
    assert!(again.foreign().await.expect("looked").iter().all(|s| !s.detail.contains(&instance)));
    again.stderr_tail(&instance).await.expect("read where it is");
    let data = disk(&again, "data", Some(&image(folder.path(), 'a'))).await;
    let lent = again.grant_disk(&instance, &data).await.expect("lent");
    assert_eq!(fs::metadata(&data.file).expect("there").uid(), shared.uid);
    let (qmp, _events) = again.connect(&instance).await.expect("a monitor");
    block::plug(&qmp, &lent).await.expect("plugged into a machine of the old build");
    drop(qmp);
    logs::cut_all(&again.layout, 4096);
    again.kill(&instance, GRACE).await.expect("ended");

    let restarted = again.launch(&config).await.expect("started the new way");
    let user = ids(&restarted);
    assert!(user.0 != shared.uid && user.0 == user.1, "{user:?}");
    assert!(fs::symlink_metadata(home.join("serial.log")).expect("there").is_file(), "no link any more");
    // With the older build again, running machines continue, by the record of their start.
    let older = LocalHypervisor::discover().expect("installed").with_run_as(Some(shared));
    assert!(older.is_alive(&restarted.identity).await.expect("asked"));
    older.connect(&MachinePaths::in_directory(home.join("run"))).await.expect("where it was");
    again.kill(&instance, GRACE).await.expect("ended");
}

#[tokio::test]
async fn a_disk_of_a_running_qemu_continues_after_a_snapshot_and_starts_on_it_again_while_a_copy_runs() {
    let Some((folder, system)) = root_host().await else { return };
    let (a, mut config, process) = launch(&system, folder.path(), "a", 'a').await;
    let taken = crate::Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
    for number in 1..=2 {
        let id = format!("s-{number}");
        let new =
            crate::NewSnapshot { pool: "default".into(), id: id.clone(), volume: "v-a".into(), owner: None };
        let volume = system.begin_snapshots(&[new]).await.expect("begun").remove(0);
        let error = system.grant_disk(&a, &config.machine.disks[0]).await.expect_err("a former file");
        assert_eq!(error.variant(), "VolumeBusy");
        let error =
            system.finish_snapshot("default", &id, &taken).await.expect_err("QEMU writes to the file");
        assert_eq!(error.variant(), "VolumeBusy");
        let overlay = DiskSpec { file: volume.path, backing: None, ..config.machine.disks[0].clone() };
        let lent = system.grant_disk(&a, &overlay).await.expect("granted");
        let (qmp, _events) = system.connect(&a).await.expect("connected");
        assert!(block::snapshot_disks(&qmp, &[lent], &[]).await.expect("switched"));
        system.finish_snapshot("default", &id, &taken).await.expect("finished");
        block::resize(&qmp, "v-a", (1 + number) << 20).await.expect("grown in its new file");
    }
    let snapshots = folder.path().join("pools/default/snapshots");
    assert!(
        !can(ids(&process), SEE, &snapshots.join("s-1.qcow2")),
        "no QEMU has a path to another's snapshots"
    );
    system.kill(&a, Duration::ZERO).await.expect("ended");
    let volume = system.volume("default", "v-a").await.expect("read").expect("there");
    assert_eq!(volume.size, 3 << 20);
    let disk = |volume: crate::VolumeFacts, like: &DiskSpec| DiskSpec {
        id: volume.id.clone(),
        file: volume.path,
        backing: volume.backing,
        ..like.clone()
    };
    config.machine.disks = vec![disk(volume, &config.machine.disks[0])];
    system.launch(&config).await.expect("started on its snapshots");
    // A copy of the first snapshot runs as another user, on the same file.
    let new = NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: "v-b".to_owned(),
        size: None,
        base: None,
        snapshot: Some("s-1".to_owned()),
        file: None,
        thick: false,
        shared: false,
        owner: VolumeOwner {
            namespace: "n".to_owned(),
            name: "b".to_owned(),
            uid: None,
            image: None,
            source: None,
        },
    };
    let copy = system.create_volume(&new).await.expect("copied");
    let b = instance();
    let mut other = machine(&system, &b, Firmware::Bios).await;
    other.machine.disks = vec![disk(copy, &config.machine.disks[0])];
    system.launch(&other).await.expect("started beside it");
    let links = folder.path().join("pools/default/readers");
    assert_eq!(fs::read_dir(links.join(&a)).expect("links").count(), 2);
    for instance in [&a, &b] {
        system.kill(instance, Duration::ZERO).await.expect("ended");
    }
    assert_eq!(fs::read_dir(&links).expect("links").count(), 0, "no link keeps the bytes of a snapshot");
}

#[tokio::test]
async fn files_of_deleted_snapshots_are_merged_below_a_running_qemu_which_closes_them() {
    let Some((folder, system)) = root_host().await else { return };
    let (a, config, _) = launch(&system, folder.path(), "a", 'a').await;
    let (qmp, _events) = system.connect(&a).await.expect("connected");
    let taken = crate::Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
    let open = || async {
        let disks = block::disks(&qmp).await.expect("disks");
        disks.into_iter().find(|disk| disk.id == "v-a").expect("plugged")
    };
    let granted = || async {
        let volume = system.volume("default", "v-a").await.expect("read").expect("there");
        let spec = DiskSpec { file: volume.path, backing: volume.backing, ..config.machine.disks[0].clone() };
        system.grant_disk(&a, &spec).await.expect("granted")
    };
    for number in 1..=4 {
        let id = format!("s-{number}");
        let new =
            crate::NewSnapshot { pool: "default".into(), id: id.clone(), volume: "v-a".into(), owner: None };
        system.begin_snapshots(&[new]).await.expect("begun");
        let overlay = DiskSpec { backing: None, ..granted().await };
        assert!(block::snapshot_disks(&qmp, &[overlay], &[]).await.expect("switched"));
        system.finish_snapshot("default", &id, &taken).await.expect("finished");
    }
    assert_eq!(open().await.files_below, 5, "four snapshots and the image");
    let kept = BTreeSet::new();
    for _ in 0..3 {
        let merged = system.merge_snapshots(&kept).await.expect("merged").expect("one");
        assert_eq!(merged.volumes, ["v-a"]);
    }
    assert_eq!(system.merge_snapshots(&kept).await.expect("looked"), None, "the disk writes above the last");
    let snapshots = folder.path().join("pools/default/snapshots");
    assert_eq!(fs::read_dir(&snapshots).expect("there").count(), 2, "a file and its note");
    let left = fs::metadata(snapshots.join("s-4.qcow2")).expect("there");
    assert_eq!((left.uid(), left.mode() & 0o777), (0, 0o444), "nothing writes to it");
    assert_eq!(open().await.files_below, 5);
    block::shorten_chain(&qmp, &granted().await).await.expect("shortened");
    assert_eq!(open().await.files_below, 2);
    let links = folder.path().join("pools/default/readers").join(&a);
    let names: Vec<_> =
        fs::read_dir(&links).expect("links").map(|link| link.expect("one").file_name()).collect();
    assert_eq!(names, ["s-4.qcow2"], "no link keeps the bytes of the others");
    block::resize(&qmp, "v-a", 2 << 20).await.expect("grown");
    system.kill(&a, Duration::ZERO).await.expect("ended");
    // It starts on what is there now, also by a request from before.
    let stale = Backing {
        file: snapshots.join("s-4.qcow2"),
        format: Format::Qcow2,
        backing: Some(Box::new(Backing {
            file: snapshots.join("s-3.qcow2"),
            format: Format::Qcow2,
            backing: None,
        })),
    };
    let volume = system.volume("default", "v-a").await.expect("read").expect("there");
    let disk = DiskSpec { file: volume.path, backing: Some(stale), ..config.machine.disks[0].clone() };
    let machine = MachineSpec { disks: vec![disk], ..config.machine.clone() };
    system.launch(&LaunchRequest { machine, ..config }).await.expect("started");
    system.kill(&a, Duration::ZERO).await.expect("ended");
}
