//! The load program in its guest: its disk, its script, its server, and its report on the console.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::namespace::Namespace;
use crate::process::{self, Daemon};
use crate::workspace;

/// The size of the data disk, in bytes.
pub const DATA: u64 = 256 << 20;
/// The address of the host on the cable, with its prefix length.
pub const HERE: &str = "203.0.113.1/24";
/// The address of the host on the cable.
pub const GATEWAY: &str = "203.0.113.1";
/// The size of the disk with the program. The guest finds its disks by their sizes.
const PROGRAM: u64 = 4 << 20;
const SECTOR: u64 = 512;
const THERE: &str = "203.0.113.2/24";
const SERVER: &str = "203.0.113.2:7000";
/// The port of a guest that serves.
const PORT: u16 = 7000;
/// The number of turns, of a second each, that a guest has for each kind of load.
const TURNS: u32 = 15;
/// The seconds that each kind of load takes between two guests.
const BETWEEN: u32 = 2;
/// The guest's first process says this before anything else.
const STARTED: &str = "berth-guest-started";
/// The guest waits for its first turn.
const READY: &str = "guest-load ready";
const DONE: &str = "guest-load done";
const FAILED: &str = "guest-load failed";
/// The time limit for a boot under emulation.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// The time limit for all loads.
const LOAD_LIMIT: Duration = Duration::from_secs(900);
/// The interval between two reads of the console.
const GLANCE: Duration = Duration::from_millis(1);

/// The program, linked for a guest without libraries.
#[derive(Debug)]
pub struct Load {
    /// The program.
    pub program: PathBuf,
    /// A disk that contains it.
    pub disk: PathBuf,
    /// The SHA-256 of that disk.
    pub sha256: String,
    /// The file that servers lock while they give a turn.
    pub turns: PathBuf,
}

impl Load {
    /// Compiles it.
    pub fn build(folder: &Path) -> Result<Self> {
        let (program, disk) = (folder.join("guest-load"), folder.join("guest-load.raw"));
        let mut compile = Command::new("rustc");
        compile.args(["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-C", "strip=symbols"]);
        compile.arg(workspace::root().join("acceptance-tests/src/bin/guest-load.rs")).arg("-o").arg(&program);
        process::run(&mut compile, Duration::from_secs(120))?.success()?;
        fs::copy(&program, &disk)?;
        ensure!(fs::metadata(&disk)?.len() <= PROGRAM, "guest-load is larger than its disk");
        File::options().write(true).open(&disk)?.set_len(PROGRAM)?;
        let sha256 = Sha256::digest(fs::read(&disk)?).iter().map(|byte| format!("{byte:02x}")).collect();
        let turns = folder.join("turns");
        File::create(&turns)?;
        Ok(Self { program, disk, sha256, turns })
    }

    /// The user data of a guest that loads its disk and its network in turns.
    pub fn script(&self) -> String {
        let (program, data) = (PROGRAM / SECTOR, DATA / SECTOR);
        format!(
            "#!/bin/sh
for disk in /sys/block/sd*; do
	case $(cat $disk/size) in
	{program}) program=/dev/${{disk##*/}} ;;
	{data}) data=/dev/${{disk##*/}} ;;
	esac
done
dd if=$program of=/run/guest-load bs=1M
chmod 755 /run/guest-load
{{
	/run/guest-load turns $data {SERVER} {TURNS} && echo {DONE}
}} >/dev/ttyS0
"
        )
    }
}

/// The script of a guest that serves others, for the rest of its life.
pub fn server_script() -> String {
    let serves = format!("/run/guest-load serve 0.0.0.0:{PORT} >/dev/null 2>&1 </dev/null &");
    format!("{}{serves}\necho {DONE} >/dev/ttyS0\n", take_program())
}

/// The script of a guest that loads the network towards the server at this address.
pub fn client_script(server: &str) -> String {
    let loads = format!("/run/guest-load network {server}:{PORT} {BETWEEN} && echo {DONE}");
    format!("{}{{ {loads}; }} >/dev/ttyS0\n", take_program())
}

/// The script of a guest that writes to its data disk for the rest of its life, and reports its longest writes.
pub fn pauses_script() -> String {
    let data = DATA / SECTOR;
    format!(
        "{}for disk in /sys/block/sd*; do
	[ $(cat $disk/size) = {data} ] && data=/dev/${{disk##*/}}
done
/run/guest-load pauses $data >/dev/ttyS0 2>&1 </dev/null &
",
        take_program()
    )
}

/// The longest writes that a guest with [`pauses_script`] reports on its console, in milliseconds.
pub fn pauses(console: &Path) -> Result<Vec<f64>> {
    let text = String::from_utf8_lossy(&fs::read(console)?).into_owned();
    ensure!(!text.contains(FAILED), "the guest's load failed: {}", process::tail(&text, 2000));
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("guest-load pause "));
    Ok(lines.filter_map(|micros| Some(micros.parse::<f64>().ok()? / 1e3)).collect())
}

/// The part of a script that takes the program from its disk.
fn take_program() -> String {
    let program = PROGRAM / SECTOR;
    format!(
        "#!/bin/sh
for disk in /sys/block/sd*; do
	[ $(cat $disk/size) = {program} ] && program=/dev/${{disk##*/}}
done
dd if=$program of=/run/guest-load bs=1M
chmod 755 /run/guest-load
"
    )
}

/// The machine beyond the cable, with the server.
#[derive(Debug)]
pub struct Outside {
    _server: Daemon,
    /// Its network.
    pub namespace: Arc<Namespace>,
}

impl Outside {
    /// Connects a machine to a host and starts the server on it.
    pub fn beyond(host: &Namespace, load: &Load) -> Result<Self> {
        let namespace = Namespace::new()?;
        host.connect(HERE, &namespace, THERE)?;
        let mut command = namespace.command(&load.program);
        command.args(["serve", SERVER]).arg(&load.turns);
        let log = load.program.with_file_name(format!("server-{}.log", namespace.name()));
        Ok(Self { _server: Daemon::spawn("guest-load", &mut command, &log)?, namespace })
    }
}

/// The results that a guest reports.
#[derive(Debug)]
pub struct Course {
    values: BTreeMap<String, Vec<f64>>,
}

impl Course {
    /// The results of a kind of load, in their order.
    pub fn values(&self, name: &str) -> Result<&[f64]> {
        Ok(self.values.get(name).with_context(|| format!("the guest does not report {name}"))?)
    }
}

/// Waits until the guest's first process runs, and returns the time since `began`.
pub fn started(console: &Path, began: Instant) -> Result<Duration> {
    wait(console, STARTED, BOOT_LIMIT, GLANCE)?;
    Ok(began.elapsed())
}

/// Waits until the guest waits for its first turn.
pub fn ready(console: &Path) -> Result<()> {
    wait(console, READY, BOOT_LIMIT, GLANCE * 200).map(drop)
}

/// Waits for the guest's report.
pub fn course(console: &Path) -> Result<Course> {
    let text = wait(console, DONE, LOAD_LIMIT, GLANCE * 200)?;
    Ok(Course { values: values(&text) })
}

fn wait(console: &Path, marker: &str, limit: Duration, interval: Duration) -> Result<String> {
    let end = Instant::now() + limit;
    loop {
        // It does not exist before QEMU runs.
        let text = fs::read(console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        if text.contains(marker) {
            return Ok(text);
        }
        if text.contains(FAILED) || Instant::now() > end {
            bail!("the guest does not say {marker:?}: {}", process::tail(&text, 2000));
        }
        std::thread::sleep(interval);
    }
}

fn values(text: &str) -> BTreeMap<String, Vec<f64>> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("guest-load ")) {
        if let Some((name, value)) = line.split_once(' ')
            && let Ok(value) = value.parse()
        {
            values.entry(name.to_owned()).or_default().push(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_serves_in_the_background_and_another_reports_its_results() {
        let script = server_script();
        assert!(script.starts_with("#!/bin/sh\n") && script.contains("serve 0.0.0.0:7000"), "{script}");
        assert!(script.contains("</dev/null &\necho guest-load done >/dev/ttyS0\n"), "{script}");
        let script = client_script("10.88.0.10");
        assert!(
            script.ends_with(
                "{ /run/guest-load network 10.88.0.10:7000 2 && echo guest-load done; } >/dev/ttyS0\n"
            ),
            "{script}"
        );
    }

    #[test]
    fn the_results_are_read_from_a_console() {
        let text = "berth-guest-started\r\nguest-load ready\r\nguest-load disk-read 1048576\r\n[ 3.1] kernel\r\n\
             guest-load disk-read 2\r\nguest-load done\r\n";
        let course = Course { values: values(text) };
        assert_eq!(course.values("disk-read").expect("it is there"), [1_048_576.0, 2.0]);
        assert!(course.values("disk-write").is_err());
    }
}
