use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroup::Share;
use super::*;
use crate::hypervisor::{CpuTime, Hypervisor, Limits, ProcessState};

/// A child process that runs until it is terminated.
#[allow(clippy::zombie_processes, reason = "who reaps is what is tested")]
fn sleeper(script: &str) -> ProcessIdentity {
    let child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().expect("a shell");
    let pid = i32::try_from(child.id()).expect("an int");
    // Dropped without waiting: a zombie when it ends, unless it is reaped.
    identity::of(pid).expect("readable").expect("it runs")
}

fn hypervisor() -> LocalHypervisor {
    LocalHypervisor::at("/nonexistent/qemu-system-x86_64").with_cgroups(Cgroups::none())
}

#[test]
fn a_process_named_like_a_stat_line_is_read_right() {
    let text = "42 (a) R 1 (b) S) S 1 42 42 0 -1 4194560 100 0 0 0 1 2 3 4 20 0 7 0 987654 1000 200 18446744073709551615";
    let stat = identity::parse(text).expect("a stat line");
    assert_eq!((stat.state, stat.threads, stat.start_time), ('S', 7, 987_654));
    assert!(identity::parse("42 (cut").is_none());
}

#[tokio::test]
async fn the_search_for_a_machine_verifies_the_claim_of_no_other_one() {
    let look_alike = |instance: &str| {
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", "read wait", "-smbios"]);
        command.arg(format!("type=1,manufacturer=berth,sku={instance}"));
        command.stdin(Stdio::piped()).spawn().expect("a shell")
    };
    let mut children = ["i-scan-one", "i-scan-two"].map(look_alike);
    let verified = Arc::new(Mutex::new(Vec::new()));
    let record = verified.clone();
    let claims = Claims::new(move |instance, _| {
        record.lock().expect("a lock").push(instance.to_owned());
        instance != "i-scan-one"
    });
    let hypervisor = hypervisor().with_claims(claims);
    let found = hypervisor.find("i-scan-two").await.expect("readable").expect("it runs");
    assert_eq!(u32::try_from(found.pid), Ok(children[1].id()));
    assert_eq!(*verified.lock().expect("a lock"), ["i-scan-two"]);
    assert_eq!(hypervisor.find("i-scan-one").await.expect("readable"), None, "its claim is false");
    let all = hypervisor.list().await.expect("readable");
    let of = |child: u32| {
        let listed = all.iter().find(|qemu| u32::try_from(qemu.identity.pid) == Ok(child)).expect("listed");
        listed.instance.as_deref()
    };
    assert_eq!([of(children[0].id()), of(children[1].id())], [None, Some("i-scan-two")]);
    for child in &mut children {
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
    }
}

#[tokio::test]
async fn a_process_that_a_signal_has_stopped_is_seen_as_such_until_it_goes_on_or_ends() {
    let process = sleeper("exec sleep 60");
    let until = async |wanted: Option<ProcessState>| {
        let start = Instant::now();
        loop {
            let state = hypervisor().process_state(&process).await.expect("readable");
            if state == wanted {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{state:?} and not {wanted:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let signal = |signal: Signal| kill(Pid::from_raw(process.pid), signal).expect("sent");
    until(Some(ProcessState::Running)).await;
    signal(Signal::SIGSTOP);
    until(Some(ProcessState::Stopped)).await;
    signal(Signal::SIGCONT);
    until(Some(ProcessState::Running)).await;
    signal(Signal::SIGKILL);
    until(None).await;
}

#[tokio::test]
async fn the_oom_killer_prefers_a_process_by_the_number_above_that_of_this_one() {
    let process = sleeper("exec sleep 60");
    let score = |pid: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("readable");
        text.trim().parse::<i32>().expect("a number")
    };
    for preference in [300, 1000, 0] {
        hypervisor().set_oom_preference(&process, preference).await.expect("set");
        let wanted = (score("self") + i32::from(preference)).min(1000);
        assert_eq!(score(&process.pid.to_string()), wanted);
    }
    kill(Pid::from_raw(process.pid), Signal::SIGKILL).expect("sent");
    hypervisor().exited(&process).await.expect("ended");
    hypervisor().set_oom_preference(&process, 300).await.expect("it has ended");
}

#[test]
fn a_process_has_ended_when_its_last_thread_has() {
    for (state, threads, ended) in
        [('S', 1, false), ('R', 4, false), ('Z', 4, false), ('Z', 1, true), ('X', 0, true)]
    {
        let stat = identity::Stat { state, threads, start_time: 1 };
        assert_eq!(stat.has_ended(), ended, "{state} with {threads} threads");
    }
}

#[tokio::test]
async fn another_process_of_the_same_number_is_not_mistaken_for_ours() {
    let host = hypervisor();
    let ours = sleeper("exec sleep 60");
    let earlier = ProcessIdentity { start_time: ours.start_time - 1, ..ours.clone() };
    let other_boot = ProcessIdentity { boot_id: "other".to_owned(), ..ours.clone() };
    for not_it in [&earlier, &other_boot] {
        assert!(!host.is_alive(not_it).await.expect("asked"));
        host.kill(not_it, Duration::from_secs(1)).await.expect("nothing to do");
        host.exited(not_it).await.expect("long ago");
    }
    assert!(host.is_alive(&ours).await.expect("asked"));
    host.kill(&ours, Duration::from_secs(5)).await.expect("killed");
    assert!(!host.is_alive(&ours).await.expect("asked"));
}

#[tokio::test]
async fn who_ignores_the_first_signal_gets_the_second_and_no_zombie_stays() {
    let host = hypervisor();
    let stubborn = sleeper("trap '' TERM; while :; do sleep 0.05; done");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    host.kill(&stubborn, Duration::from_millis(200)).await.expect("killed");
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(identity::stat(stubborn.pid).expect("readable").is_none(), "a zombie is left");
    host.kill(&stubborn, Duration::from_secs(1)).await.expect("killing twice is fine");
}

#[tokio::test]
async fn the_end_of_a_process_wakes_who_waits_for_it() {
    let host = hypervisor();
    let brief = sleeper("sleep 0.2");
    tokio::time::timeout(Duration::from_secs(5), host.exited(&brief))
        .await
        .expect("in time")
        .expect("exited");
    assert!(identity::stat(brief.pid).expect("readable").is_none(), "a zombie is left");
}

#[tokio::test]
async fn a_missing_qemu_says_what_to_install() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let spec = crate::machine::example(directory.path());
    let error = hypervisor().launch(&spec, Limits::default()).await.expect_err("not there");
    assert!(error.to_string().contains("apt install qemu-system-x86"), "{error}");
}

#[tokio::test]
async fn a_missing_tap_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut spec = crate::machine::example(directory.path());
    spec.machine.nics.push(crate::machine::NicSpec {
        id: "nic0".to_owned(),
        tap: crate::machine::Tap::Name("no-such-tap0".to_owned()),
        mac: "52:54:00:12:34:56".to_owned(),
        mtu: None,
        slot: 0,
        model: crate::machine::NicModel::default(),
        port: None,
        queues: 1,
        no_vhost: false,
    });
    let error = hypervisor().launch(&spec, Limits::default()).await.expect_err("not there");
    assert!(matches!(&error, LaunchError::Tap { name, .. } if name == "no-such-tap0"), "{error}");
}

#[test]
fn the_last_lines_are_bounded_clean_and_never_somebody_elses() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (log, link) = (directory.path().join("log"), directory.path().join("link"));
    std::fs::write(&log, format!("{}\nlast but one\n\n\u{1b}[2Jlast\n", "x".repeat(100_000)))
        .expect("written");
    assert_eq!(last_lines(&log, 2, 4096).expect("read"), "last but one\n[2Jlast");
    assert!(last_lines(&log, 100, 4096).expect("read").len() <= 4096);
    symlink(&log, &link).expect("linked");
    assert!(last_lines(&link, 2, 4096).is_err());
    assert!(cut_log(&link, 1).is_err());
    assert_eq!(last_lines(&directory.path().join("none"), 2, 4096).expect("nothing"), "");
    assert_eq!(cut_log(&log, 1 << 20).expect("short enough"), None);
    let kept = cut_log(&log, 1 << 10).expect("emptied").expect("it was too long");
    assert!(kept.len() == 1 << 10 && kept.ends_with(b"last\n"));
    assert_eq!(std::fs::metadata(&log).expect("there").len(), 0);
}

#[test]
fn what_a_taken_over_qemu_puts_in_the_place_of_a_log_neither_holds_up_nor_misleads() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let log = directory.path().join("qemu.log");
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious").expect("written");
    let fifo = || nix::unistd::mkfifo(&log, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("made");
    let link = || symlink(&victim, &log).expect("made");
    let hard_link = || std::fs::hard_link(&victim, &log).expect("made");
    for put in [&fifo as &dyn Fn(), &link, &hard_link] {
        put();
        assert!(last_lines(&log, 2, 4096).is_err(), "not read");
        assert!(cut_log(&log, 1).is_err(), "not cut");
        // Opening a FIFO without a reader would block forever.
        let file = log::open_log(&log).expect("opened");
        file.set_len(0).expect("a file of ours");
        assert!(std::fs::symlink_metadata(&log).expect("there").is_file());
        assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
        std::fs::remove_file(&log).expect("removed");
    }
}

#[test]
fn rules_allow_what_was_named_and_nothing_else() {
    use super::landlock::{Reach, Ruleset};
    let directory = tempfile::tempdir().expect("a temporary directory");
    let folder = |name: &str| {
        let folder = directory.path().join(name);
        std::fs::create_dir(&folder).expect("made");
        std::fs::write(folder.join("file"), name).expect("written");
        folder
    };
    let (mine, lent, foreign) = (folder("mine"), folder("lent"), folder("foreign"));
    let Some(ruleset) = Ruleset::new().expect("asked") else {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    };
    ruleset.allow(&mine, Reach::Own).expect("allowed");
    ruleset.allow(&lent, Reach::Read).expect("allowed");
    ruleset.allow(&directory.path().join("missing"), Reach::Read).expect("nothing to allow");
    // Landlock rules apply to one thread, and end with it.
    let confined = std::thread::spawn(move || {
        nix::sys::prctl::set_no_new_privs().expect("set");
        landlock::restrict(ruleset.as_raw_fd()).expect("restricted");
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        assert_eq!(std::fs::read(lent.join("file")).expect("lent"), b"lent");
        assert!(std::fs::write(lent.join("file"), "x").is_err_and(refused));
        std::fs::write(mine.join("new"), "x").expect("its own folder");
        assert!(std::fs::read(foreign.join("file")).is_err_and(refused));
        assert!(std::fs::read_dir(foreign.parent().expect("a parent")).is_err_and(refused));
        assert!(std::fs::hard_link(mine.join("new"), foreign.join("new")).is_err());
    });
    confined.join().expect("confined");
}

#[test]
fn cgroups_of_both_versions_are_recognised() {
    let hybrid = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                  cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                  cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
                  cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                  proc /proc proc rw 0 0\nshort\n";
    insta::assert_debug_snapshot!(Cgroups::from_mounts(hybrid).hierarchies(), @r#"
    [
        V1 {
            controller: "memory",
            mount: "/sys/fs/cgroup/memory",
        },
        V1 {
            controller: "cpu",
            mount: "/sys/fs/cgroup/cpu,cpuacct",
        },
        V1 {
            controller: "name=systemd",
            mount: "/sys/fs/cgroup/systemd",
        },
        V2 {
            mount: "/sys/fs/cgroup/unified",
        },
    ]
    "#);
    assert!(Cgroups::from_mounts("proc /proc proc rw 0 0").hierarchies().is_empty());
}

#[test]
fn limits_are_written_where_the_version_keeps_them() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let path = root.path().display().to_string();
    let limits = Limits { memory_max: Some(1 << 30), cpu: CpuTime { limit: Some(1500), weight: 100 } };
    for (kind, files, (share, young, running)) in [
        (
            format!("cgroup2 {path} cgroup2 rw 0 0"),
            [("memory.max", "1073741824"), ("cpu.max", "150000 100000"), ("cpu.weight", "1000")],
            ("cpu.weight", "2", "100"),
        ),
        (
            format!("x {path} cgroup rw,memory,cpu 0 0"),
            [
                ("memory.limit_in_bytes", "1073741824"),
                ("cpu.cfs_quota_us", "150000"),
                ("cpu.shares", "10240"),
            ],
            ("cpu.shares", "20", "1024"),
        ),
    ] {
        let cgroups = Cgroups::from_mounts(&kind);
        // A plain directory has no cgroup.procs to open: the machine starts without it, but the limits can be read.
        assert!(cgroups.prepare("i-1", limits).files.is_empty());
        let read = |file| std::fs::read_to_string(root.path().join("berth/i-1").join(file)).expect(file);
        for (file, value) in files {
            assert_eq!(read(file), value);
        }
        for (given, written) in [(Share::Young, young), (Share::Running, running)] {
            cgroups.give("i-1", given);
            assert_eq!(read(share), written);
        }
    }
}

#[test]
fn berth_itself_takes_precedence_where_it_is_at_the_root_of_a_hierarchy_that_divides_cpu_time() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let [v1, v2] = ["v1", "v2"].map(|name| root.path().join(name));
    for (version, weight) in [(&v1, "cpu.shares"), (&v2, "cpu.weight")] {
        std::fs::create_dir_all(version.join("berth-agent")).expect("made");
        std::fs::write(version.join("berth-agent").join(weight), "").expect("written");
    }
    let mounts = format!("x {} cgroup rw,cpu 0 0\nx {} cgroup2 rw 0 0", v1.display(), v2.display());
    let cgroups = Cgroups::from_mounts(&mounts);
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    cgroups.precede_from("3:cpu,cpuacct:/user\n0::/system.slice/berth.service\n").expect("nothing to do");
    assert_eq!(read(v1.join("berth-agent/cpu.shares")), "");
    cgroups.precede_from("3:cpuacct:/\n2:cpu,x:/\n0::/init.scope\n").expect("moved");
    assert_eq!(read(v1.join("berth-agent/cpu.shares")), "3072");
    assert_eq!(read(v1.join("berth-agent/cgroup.procs")), "0");
    assert_eq!(read(v2.join("berth-agent/cpu.weight")), "");
    cgroups.precede_from("0::/\n").expect("moved");
    assert_eq!(read(v2.join("berth-agent/cpu.weight")), "300");
    assert_eq!(read(v2.join("berth-agent/cgroup.procs")), "0");
    std::fs::remove_dir_all(&v2).expect("removed");
    std::fs::create_dir(&v2).expect("made");
    cgroups.precede_from("0::/\n").expect("without a controller there is nothing to divide");
    assert!(!v2.join("berth-agent").exists());
}

#[test]
fn processes_that_the_oom_killer_ended_are_counted_in_both_versions() {
    for (kind, file) in [("cgroup2", "memory.events"), ("cgroup", "memory.oom_control")] {
        let root = tempfile::tempdir().expect("a temporary directory");
        let cgroups = Cgroups::from_mounts(&format!("x {} {kind} rw,memory 0 0", root.path().display()));
        let instance = format!("i-oom-{kind}");
        assert_eq!(cgroups.oom_kills(&instance), 0, "without a group");
        drop(cgroups.prepare(&instance, Limits::default()));
        let path = root.path().join("berth").join(&instance).join(file);
        std::fs::write(&path, "oom_kill 1\n").expect("written");
        assert_eq!(cgroups.oom_kills(&instance), 1);
        // Not empty, so that it stays, like one of which a process is still ending.
        drop(cgroups.prepare(&instance, Limits::default()));
        assert_eq!(cgroups.oom_kills(&instance), 0, "that of the earlier machine");
        std::fs::write(&path, "oom_kill 2\n").expect("written");
        assert_eq!(cgroups.oom_kills(&instance), 1);
    }
}

#[test]
fn the_cpu_time_of_a_machine_is_changed_and_read_back_in_both_versions() {
    for kind in ["cgroup2", "cgroup"] {
        let root = tempfile::tempdir().expect("a temporary directory");
        let cgroups = Cgroups::from_mounts(&format!("x {} {kind} rw,cpu 0 0", root.path().display()));
        let instance = format!("i-{kind}");
        let of = |limit, weight| CpuTime { limit, weight };
        assert_eq!(cgroups.cpu_time(&instance).expect("read"), CpuTime::default(), "without a group");
        let refused = cgroups.set_cpu_time(&instance, of(None, 1)).expect_err("without a group");
        assert!(matches!(refused, ProcessError::NoCpuController), "{refused}");

        drop(cgroups.prepare(&instance, Limits { cpu: of(Some(250), 40), ..Limits::default() }));
        assert_eq!(cgroups.cpu_time(&instance).expect("read"), of(Some(250), 40), "its own, while it starts");
        cgroups.set_cpu_time(&instance, of(Some(250), 70)).expect("written");
        cgroups.give(&instance, Share::Running);
        assert_eq!(cgroups.cpu_time(&instance).expect("read"), of(Some(250), 70));
        for weight in (1..=10_000).step_by(7) {
            cgroups.set_cpu_time(&instance, of(Some(10), weight)).expect("written");
            assert_eq!(cgroups.cpu_time(&instance).expect("read"), of(Some(10), weight));
        }
        cgroups.set_cpu_time(&instance, of(None, 10_000)).expect("written");
        assert_eq!(cgroups.cpu_time(&instance).expect("read"), of(None, 10_000));
        cgroups.give(&instance, Share::Young);
        assert_eq!(
            cgroups.cpu_time(&instance).expect("read"),
            of(None, 10_000),
            "it does not yield any more"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_has_just_begun_waits_for_others_and_only_for_a_while() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let cgroups = Cgroups::from_mounts(&format!("x {} cgroup rw,cpu 0 0", root.path().display()));
    let host = hypervisor().with_cgroups(cgroups.clone());
    drop(cgroups.prepare("i-1", Limits::default()));
    let shares = || std::fs::read_to_string(root.path().join("berth/i-1/cpu.shares")).expect("written");
    assert_eq!(shares(), "10240");
    host.mark_started("i-1", true).await;
    assert_eq!(shares(), "20");
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(shares(), "1024");

    drop(cgroups.prepare("i-1", Limits::default()));
    host.mark_started("i-1", false).await;
    assert_eq!(shares(), "1024", "one that an agent finds running has waited already");
}

#[test]
fn a_cgroup_that_lists_only_what_has_ended_will_be_empty() {
    let cgroup = tempfile::tempdir().expect("a temporary directory");
    let mut child = Command::new("true").spawn().expect("started");
    let zombie = i32::try_from(child.id()).expect("process numbers are positive ints");
    while !identity::stat(zombie).expect("readable").expect("not waited for").has_ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ours = std::process::id();
    for (listed, expected) in
        [(String::new(), true), (format!("{zombie}\n0\n"), true), (format!("{zombie}\n{ours}\n"), false)]
    {
        std::fs::write(cgroup.path().join("cgroup.procs"), &listed).expect("written");
        assert_eq!(cgroup::holds_nothing_alive(cgroup.path()), expected, "{listed:?}");
    }
    child.wait().expect("ended");
}

#[test]
fn the_sweep_takes_empty_cgroups_and_leaves_those_being_entered() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let parent = root.path().join("berth");
    let cgroups = Cgroups::from_mounts(&format!("x {} cgroup rw,pids 0 0", root.path().display()));
    std::fs::create_dir_all(parent.join("gone")).expect("made");
    let entrances = cgroups.prepare("coming", Limits::default());
    cgroups.sweep();
    assert!(!parent.join("gone").exists() && parent.join("coming").exists());
    drop(entrances);
    cgroups.sweep();
    assert!(!parent.exists());
}

#[test]
fn machines_are_in_the_unit_that_is_delegated_to_them_and_earlier_ones_stay_outside() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (unit, outside) =
        (root.path().join("system.slice/berth-machines.service"), root.path().join("berth"));
    let cgroups = Cgroups::from_mounts(&format!("cgroup2 {} cgroup2 rw 0 0", root.path().display()));
    drop(cgroups.prepare("i-before", Limits::default()));
    assert!(outside.join("i-before/cpu.weight").exists());
    std::fs::create_dir_all(&unit).expect("made");
    std::fs::write(unit.join("cgroup.procs"), "17\n").expect("written");
    drop(cgroups.prepare("i-after", Limits::default()));
    let kept = std::fs::read_to_string(unit.join("_keeper/cgroup.procs"));
    assert_eq!(kept.expect("written"), "17", "the unit's own process makes room for controllers");
    assert!(unit.join("i-after/cpu.weight").exists() && !outside.join("i-after").exists());
    let enabled =
        |level: &std::path::Path| std::fs::read_to_string(level.join("cgroup.subtree_control")).ok();
    assert_eq!(enabled(&unit).as_deref(), Some("+pids"), "the last that was written");
    assert_eq!(enabled(&root.path().join("system.slice")), None, "that level is systemd's");
    for (instance, parent) in [("i-before", &outside), ("i-after", &unit)] {
        cgroups.set_cpu_time(instance, CpuTime { limit: None, weight: 7 }).expect("written");
        cgroups.give(instance, Share::Running);
        let weight = std::fs::read_to_string(parent.join(instance).join("cpu.weight"));
        assert_eq!(weight.expect("written"), "7", "{instance}");
    }
    std::fs::create_dir_all(unit.join("i-gone")).expect("made");
    cgroups.sweep();
    assert!(!unit.join("i-gone").exists() && unit.exists(), "the unit is systemd's");
    assert!(unit.join("_keeper").exists(), "its process is in it");
}

#[test]
fn processes_that_the_stop_of_one_unit_ends_are_recognised() {
    let service = "0::/system.slice/berth.service\n";
    let shared = |other: &str| shared_unit(service, other);
    assert_eq!(shared(service).as_deref(), Some("berth.service"));
    assert_eq!(shared("0::/system.slice/berth.service/i-1\n").as_deref(), Some("berth.service"));
    for apart in [
        "0::/system.slice/berth-machines.service/i-1\n",
        "0::/system.slice/berth.service2\n",
        "0::/berth/i-1\n",
        "4:memory:/system.slice/berth.service\n0::/berth/i-1\n",
        "",
        "no line of a cgroup",
    ] {
        assert_eq!(shared(apart), None, "{apart}");
    }
    let session = "1:name=systemd:/user.slice/user-0.slice/session-4.scope\n0::/user.slice\n";
    assert_eq!(shared_unit(session, session).as_deref(), Some("session-4.scope"));
    assert_eq!(shared_unit("0::/\n", "0::/\n"), None, "a container without systemd");
}

#[test]
fn a_machine_with_devices_of_the_host_may_lock_all_memory_that_its_guest_can_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = crate::machine::example(folder.path());
    assert_eq!(local::locked_memory(&spec), None);
    spec.files.vfio_groups = vec!["/dev/vfio/12".into()];
    assert_eq!(local::locked_memory(&spec), Some((512 << 20) + (1 << 30)));
    spec.machine.max_memory_bytes = Some(4 << 30);
    assert_eq!(local::locked_memory(&spec), Some(5 << 30));
}

/// Runs a script in a folder that is lent to it; returns its output.
fn in_lent_folder(folder: &std::path::Path, read_only: bool, script: &str) -> String {
    use super::lent_folder::LentFolder;
    let lent = LentFolder::new(folder, read_only).expect("a path");
    let cell = launch::Cell {
        run_as: None,
        ruleset: None,
        hidden: Vec::new(),
        group: None,
        cgroups: &[],
        limits: &[],
        cpus: None,
        name: None,
        folder: Some(&lent),
        has_network: false,
    };
    let output = tempfile::NamedTempFile::new().expect("a file");
    let args = ["-c".to_owned(), format!("exec >&2; cd {} && {script}", folder.display())];
    let stderr = output.reopen().expect("opened");
    let mut child = launch::spawn("/bin/sh".as_ref(), &args, stderr, &[], &cell).expect("started");
    child.wait().expect("it ends");
    std::fs::read_to_string(output.path()).expect("text")
}

#[test]
fn a_lent_folder_has_no_new_devices_and_set_id_files_and_is_read_only_with_all_that_is_mounted_in_it() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: only root mounts");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let top = directory.path().canonicalize().expect("it exists");
    let path = top.as_path();
    std::fs::create_dir(path.join("inner")).expect("made");
    std::fs::write(path.join("file"), "host").expect("written");
    let mount = |args: &[&str]| {
        let ended = Command::new(args[0]).args(&args[1..]).arg(path.join("inner")).status();
        assert!(ended.expect("it is there").success(), "{args:?}");
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"]);
    // Before any assertion: the mount must not outlive the test.
    let tries = "for it in 'echo guest > new' 'echo guest > inner/new' 'mkdir made' 'mkfifo pipe' 'chmod 755 file' \
        'chmod 4755 file' 'chmod g+s file' 'mkdir -m 2755 sticky' 'mknod null c 1 3' 'mknod inner/null c 1 3' 'mknod disk b 8 0'; do \
        if sh -c \"$it\" 2>/dev/null; then echo \"yes $it\"; else echo \"no $it\"; fi; done";
    let written = in_lent_folder(path, false, tries);
    let read = in_lent_folder(path, true, &format!("cat file && {tries}"));
    let flags = in_lent_folder(path, true, "grep \"$PWD\" /proc/self/mountinfo | cut -d ' ' -f 5,6");
    mount(&["umount"]);

    insta::assert_snapshot!(written, @r"
    yes echo guest > new
    yes echo guest > inner/new
    yes mkdir made
    yes mkfifo pipe
    yes chmod 755 file
    no chmod 4755 file
    no chmod g+s file
    no mkdir -m 2755 sticky
    no mknod null c 1 3
    no mknod inner/null c 1 3
    no mknod disk b 8 0
    ");
    assert!(read.starts_with("host") && !read.contains("yes"), "{read}");
    let flags: Vec<&str> = flags.lines().collect();
    assert!(flags.len() >= 2, "{flags:?}");
    for mounted in &flags[flags.len() - 2..] {
        assert!(mounted.contains(" ro,nosuid,nodev"), "{flags:?}");
    }
    let mode = std::fs::metadata(path.join("file")).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "what was allowed came about");
    for entry in std::fs::read_dir(path).expect("read").flatten() {
        let kind = entry.file_type().expect("it has one");
        assert!(!kind.is_char_device() && !kind.is_block_device(), "{:?}", entry.path());
        assert_eq!(entry.metadata().expect("there").permissions().mode() & 0o6000, 0, "{:?}", entry.path());
    }
}
