//! The anchor: the same QEMU that berth starts, started by hand with berth's own command line.
//!
//! Only the host's parts are replaced: the folder of the machine, its disk (a copy) and the tap.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::Daemon;

const LIMIT: Duration = Duration::from_secs(300);
/// The interval between two attempts to connect to a monitor.
const GLANCE: Duration = Duration::from_millis(3);

/// A command line as the template of others.
#[derive(Debug)]
pub struct Template {
    arguments: Vec<String>,
    instance: PathBuf,
    disk: PathBuf,
}

impl Template {
    /// The command line of a QEMU that berth has started with this machine folder.
    pub fn of(pid: i32, instance: &Path) -> Result<Self> {
        let line = fs::read(format!("/proc/{pid}/cmdline"))?;
        let line = String::from_utf8(line).context("a command line that is no text")?;
        let arguments: Vec<String> = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        let disk = arguments.iter().find_map(|argument| disk_of(argument));
        let disk = disk.context("the command line names no disk below a pool")?;
        Ok(Self { arguments, instance: instance.to_owned(), disk })
    }

    /// The same with copies of its files, so that berth may remove its own.
    pub fn kept(self, folder: &Path) -> Result<Self> {
        let arguments = self.prepare(folder)?;
        Ok(Self { arguments, instance: folder.to_owned(), disk: folder.join("disk.qcow2") })
    }

    fn prepare(&self, folder: &Path) -> Result<Vec<String>> {
        fs::create_dir_all(folder.join("run"))?;
        for file in ["seed.img", "vars.fd"] {
            let from = self.instance.join(file);
            if from.exists() {
                fs::copy(from, folder.join(file))?;
            }
        }
        // The paths on this machine of the backing images.
        for image in fs::read_dir(self.instance.join("images")).into_iter().flatten().flatten() {
            fs::create_dir_all(folder.join("images"))?;
            fs::copy(image.path(), folder.join("images").join(image.file_name()))?;
        }
        let disk = folder.join("disk.qcow2");
        fs::copy(&self.disk, &disk)?;
        let text = |path: &Path| path.display().to_string();
        Ok(self
            .arguments
            .iter()
            .map(|argument| without_tap(argument))
            .map(|argument| argument.replace(&text(&self.disk), &text(&disk)))
            .map(|argument| argument.replace(&text(&self.instance), &text(folder)))
            .collect())
    }
}

/// The file of a writable disk that a `-blockdev` names.
fn disk_of(argument: &str) -> Option<PathBuf> {
    let value: Value = serde_json::from_str(argument).ok()?;
    let file = value["file"]["filename"].as_str()?;
    file.contains("/pools/").then(|| PathBuf::from(file))
}

fn without_tap(argument: &str) -> String {
    match argument.strip_prefix("tap,id=") {
        Some(rest) => format!("user,id={},restrict=on", rest.split(',').next().unwrap_or("net")),
        None => argument.to_owned(),
    }
}

/// QEMUs that were started at once.
#[derive(Debug)]
pub struct Burst {
    machines: Vec<Daemon>,
    /// The times from the first start until each ran.
    pub running: Vec<Duration>,
}

impl Burst {
    /// Starts `count` QEMUs and waits until each reports on QMP that it runs.
    pub fn start(template: &Template, folder: &Path, count: usize) -> Result<Self> {
        let mut ready = Vec::new();
        for number in 0..count {
            let folder = folder.join(number.to_string());
            let arguments = template.prepare(&folder)?;
            let mut command = Command::new(&arguments[0]);
            command.args(&arguments[1..]);
            ready.push((folder, command));
        }
        let began = Instant::now();
        let (mut machines, mut waiting) = (Vec::new(), Vec::new());
        for (folder, mut command) in ready {
            machines.push(Daemon::spawn("QEMU", &mut command, &folder.join("run/qemu.log"))?);
            waiting.push(std::thread::spawn(move || runs(&folder.join("run/qmp.sock"), began)));
        }
        let mut running = Vec::new();
        for (thread, machine) in waiting.into_iter().zip(&machines) {
            let joined = thread.join().map_err(|_| anyhow::anyhow!("a monitor's thread panicked"))?;
            running.push(joined.with_context(|| machine.log_tail())?);
        }
        Ok(Self { machines, running })
    }

    /// The process ids.
    pub fn pids(&self) -> Vec<i32> {
        self.machines.iter().filter_map(|machine| i32::try_from(machine.pid()).ok()).collect()
    }
}

/// Sends `cont` and waits until the machine runs, as berth does.
fn runs(socket: &Path, began: Instant) -> Result<Duration> {
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > LIMIT => return Err(error).context("reaching QEMU's monitor"),
            Err(_) => std::thread::sleep(GLANCE),
        }
    };
    stream.set_read_timeout(Some(LIMIT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    lines.next().context("no greeting")??;
    let mut ask = |command: &str| -> Result<Value> {
        writeln!(&stream, "{{\"execute\": \"{command}\"}}")?;
        loop {
            let answer: Value = serde_json::from_str(&lines.next().context("the monitor closed")??)?;
            if answer["event"].is_null() {
                return Ok(answer);
            }
        }
    };
    ask("qmp_capabilities")?;
    ask("cont")?;
    let status = ask("query-status")?;
    ensure!(status["return"]["running"] == true, "QEMU does not run: {status}");
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_by_hand_has_its_own_folder_disk_and_network() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("pools/default/volumes/v.qcow2");
        fs::create_dir_all(disk.parent().expect("it has one")).expect("made");
        fs::write(&disk, "disk").expect("written");
        let blockdev = format!(r#"{{"driver":"qcow2","file":{{"filename":"{}"}}}}"#, disk.display());
        assert_eq!(disk_of(&blockdev), Some(disk.clone()));
        let instance = folder.path().join("instances/i");
        let arguments = vec![
            "qemu".to_owned(),
            format!("path={}/run/qmp.sock", instance.display()),
            blockdev,
            "tap,id=net-nic0,ifname=t0,script=no".to_owned(),
        ];
        let template = Template { arguments, instance, disk };
        let bare = folder.path().join("bare");
        let made = template.prepare(&bare).expect("prepared");
        assert_eq!(made[1], format!("path={}/run/qmp.sock", bare.display()));
        assert!(made[2].contains(&format!("{}/disk.qcow2", bare.display())), "{}", made[2]);
        assert_eq!(made[3], "user,id=net-nic0,restrict=on");
    }
}
