//! The emulator of a TPM and the servers of shares: processes that belong to one machine and end with it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_qemu::hypervisor::{Hypervisor, LaunchError, Limits, ProcessIdentity};
use berth_qemu::machine::{ShareSpec, SharedFolder, TpmFiles, VirtiofsFiles};
use berth_qemu::power;
use berth_qemu::{shares, tpm};

use super::{Bench, status};

/// The swtpm processes with this directory.
fn emulators(state: &Path) -> Vec<ProcessIdentity> {
    let argument = format!("dir={},", state.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("it is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if command.split('\0').any(|word| word.starts_with(&argument)) {
            found.push(ProcessIdentity { pid, start_time: 0, boot_id: String::new() });
        }
    }
    found
}

fn kill(process: &ProcessIdentity) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.pid), nix::sys::signal::Signal::SIGKILL)
        .expect("it runs");
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_emulator_of_a_tpm_is_its_machines_own_and_ends_with_it_whichever_way_that_ends() {
    let Some(bench) = Bench::new().await else { return };
    let program = Path::new("/usr/bin/swtpm").to_owned();
    if !bench.installation.tpm || !program.is_file() {
        eprintln!("skipped: swtpm is not installed, or this QEMU has no TPM");
        return;
    }
    let mut spec = bench.spec("tpm");
    let state = bench.file("tpm-state");
    spec.machine.tpm = true;
    spec.files.tpm = Some(TpmFiles { program: program.clone(), state: state.clone() });
    let qemu = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    assert_eq!(tpm::emulator(&qmp).await.expect("asked"), Some(true));
    power::start(&qmp).await.expect("started");
    let emulator = emulators(&state).pop().expect("it runs");
    assert_eq!(status(&emulator, "Uid"), status(&qemu, "Uid"));
    assert_eq!((status(&emulator, "NoNewPrivs").as_str(), status(&emulator, "Groups").as_str()), ("1", ""));
    assert_eq!(status(&emulator, "CapEff"), "0000000000000000");
    let memory = state.join("tpm2-00.permall");
    until("what the TPM stores has its file", || memory.exists()).await;
    drop(qmp);

    kill(&qemu);
    bench.host.exited(&qemu).await.expect("gone");
    until("it ends when QEMU is killed", || emulators(&state).is_empty()).await;
    // As a crash of the caller between the two starts leaves it.
    use std::os::unix::process::CommandExt;
    let user = bench.host.run_as().copied();
    let mut left_behind = std::process::Command::new(&program);
    left_behind.args(["socket", "--tpm2", "--ctrl"]).arg(format!("type=unixio,path={}/x", state.display()));
    left_behind.arg("--tpmstate").arg(format!("dir={},mode=0600", state.display()));
    if let Some(user) = user {
        left_behind.uid(user.uid).gid(user.gid);
    }
    let mut child = left_behind.spawn().expect("started");
    until("it runs", || emulators(&state).len() == 1).await;
    let left_behind = emulators(&state);
    let qemu = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    // The launcher may have reaped it.
    let _ = child.wait();
    let running = emulators(&state);
    assert!(running.len() == 1 && running != left_behind, "it was ended first: {running:?}");

    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    kill(&emulators(&state).pop().expect("it runs"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while tpm::emulator(&qmp).await.expect("QEMU runs on") != Some(false) {
        assert!(Instant::now() < deadline, "QEMU has noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bench.host.is_alive(&qemu).await.expect("asked"));
    bench.host.kill(&qemu, Duration::from_secs(5)).await.expect("killed");
    assert!(memory.exists(), "what it stores is kept");

    spec.files.tpm = Some(TpmFiles { program: "/bin/false".into(), state: state.clone() });
    let failed = bench.host.launch(&spec, Limits::default()).await.expect_err("no emulator answers");
    assert!(matches!(failed, LaunchError::Exited { .. }), "{failed}");
    assert!(bench.host.find(&spec.machine.instance).await.expect("listed").is_none());
}

/// The virtiofsd processes of the machine with this directory.
fn servers(directory: &Path) -> Vec<ProcessIdentity> {
    let name = directory.join("virtiofsd").display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("it is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if command.split('\0').next() == Some(&name) {
            found.push(ProcessIdentity { pid, start_time: 0, boot_id: String::new() });
        }
    }
    found
}

#[tokio::test]
async fn the_servers_of_shares_are_their_machines_own_and_end_with_it_whichever_way_that_ends() {
    let Some(bench) = Bench::new().await else { return };
    let programs = ["/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd"];
    let program = programs.into_iter().map(Path::new).find(|program| program.is_file());
    let (Some(program), true) = (program, nix::unistd::Uid::effective().is_root()) else {
        eprintln!("skipped: this needs virtiofsd and root");
        return;
    };
    let top = bench.directory.path().canonicalize().expect("it exists");
    let (media, data) = (top.join("media"), top.join("data"));
    for folder in [&media, &data] {
        std::fs::create_dir(folder).expect("made");
    }
    let mut spec = bench.spec("shares");
    let share = |name: &str, read_only| ShareSpec { name: name.to_owned(), tag: name.to_owned(), read_only };
    spec.machine.shares = vec![share("media", true), share("data", false)];
    spec.machine.max_memory_bytes = Some(128 << 20);
    let folder = |path: &Path, read_only| SharedFolder { path: path.to_owned(), read_only };
    let folders = vec![folder(&media, true), folder(&data, false)];
    spec.files.virtiofs = Some(VirtiofsFiles { program: program.to_owned(), folders });
    let run = spec.files.paths.directory.clone();
    let ended = || servers(&run).is_empty();
    let qemu = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    assert_eq!(shares::lost(&qmp).await.expect("asked"), Some(Vec::new()));
    power::start(&qmp).await.expect("started");
    // Each share has two processes: one waits for the other, which is in the sandbox.
    until("they are in their sandboxes", || {
        let processes = servers(&run);
        let confined = |process: &&ProcessIdentity| status(process, "NSpid").contains('\t');
        processes.len() == 4 && processes.iter().filter(confined).count() == 2
    })
    .await;
    for server in servers(&run) {
        assert_eq!(status(&server, "NoNewPrivs"), "1");
        assert_eq!(status(&server, "Seccomp"), "2");
        let confined = status(&server, "NSpid").contains('\t');
        let capabilities = u64::from_str_radix(&status(&server, "CapEff"), 16).expect("a number");
        let (set_fcap, mknod, fsetid, sys_admin) = (1 << 31, 1 << 27, 1 << 4, 1 << 21);
        if confined {
            assert_eq!(capabilities & (set_fcap | mknod | fsetid | sys_admin), 0, "{capabilities:x}");
        }
    }
    let socket = std::fs::metadata(run.join("fs0.sock")).expect("it listens");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    drop(qmp);
    kill(&qemu);
    bench.host.exited(&qemu).await.expect("gone");
    until("they end when QEMU is killed", ended).await;

    let qemu = bench.host.launch(&spec, Limits::default()).await.expect("launched again");
    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    power::start(&qmp).await.expect("started");
    // Its other process ends with it.
    let serves_data = |process: &&ProcessIdentity| {
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        command.contains(&data.display().to_string()) && status(process, "NSpid").contains('\t')
    };
    until("it is in its sandbox", || servers(&run).iter().any(|process| serves_data(&process))).await;
    servers(&run).iter().filter(serves_data).for_each(kill);
    let deadline = Instant::now() + Duration::from_secs(20);
    while shares::lost(&qmp).await.expect("QEMU runs on") != Some(vec!["data".to_owned()]) {
        assert!(Instant::now() < deadline, "QEMU has noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bench.host.is_alive(&qemu).await.expect("asked"));
    bench.host.kill(&qemu, Duration::from_secs(5)).await.expect("killed");
    bench.host.end_shares(&run).await.expect("ended");
    assert!(ended(), "{:?}", servers(&run));

    let gone = SharedFolder { path: top.join("gone"), read_only: true };
    let mut broken = spec.clone();
    broken.files.virtiofs.as_mut().expect("set").folders[0] = gone;
    let failed = bench.host.launch(&broken, Limits::default()).await.expect_err("there is no such folder");
    assert!(matches!(failed, LaunchError::Prepare { .. }), "{failed}");
    broken.files.virtiofs.as_mut().expect("set").program = "/bin/false".into();
    broken.files.virtiofs.as_mut().expect("set").folders[0].path = media.clone();
    let failed = bench.host.launch(&broken, Limits::default()).await.expect_err("no server answers");
    assert!(matches!(failed, LaunchError::Exited { .. }), "{failed}");
    assert!(bench.host.find(&spec.machine.instance).await.expect("listed").is_none());
    until("none is left behind", ended).await;
}
