//! Identifies one start of an agent: its machine, the boot of that machine, and the process.
//!
//! A state directory may be copied, when a machine is cloned or restored from a backup. Its content then cannot
//! distinguish two agents; this identity can, even if the copies share `/etc/machine-id`.

use std::fs;
use std::io;
use std::path::PathBuf;

use rand::Rng;
use sha2::{Digest, Sha256};

/// Identity of a start; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Machine and boot, as `machine-boot`.
    place: String,
    /// PID namespace, pid and start time of the process, as `namespace-pid-time`.
    process: String,
    nonce: String,
}

/// State of another start with the same state directory, which took a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// A process of this boot of this machine that has ended.
    Ended,
    /// Another machine, another boot, or a process that may be running.
    MayRun,
}

impl Start {
    /// Returns the identity of this process.
    ///
    /// *Errors:* `/proc` cannot be read.
    pub fn here() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Machine ids are confidential and must not be published as they are.
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let pid = std::process::id();
        let time = start_time(pid)?.ok_or_else(|| io::Error::other("/proc has no entry of this process"))?;
        let mut nonce = [0; 8];
        rand::rng().fill_bytes(&mut nonce);
        Ok(Self {
            place: format!("{}-{}", digest(machine.trim()), digest(boot.trim())),
            process: format!("{}-{pid}-{time}", namespace()?),
            nonce: nonce.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// Returns the identity of an imagined start on another machine.
    #[cfg(any(test, feature = "fake"))]
    pub fn of(place: &str) -> Self {
        Self { place: place.to_owned(), process: "1-2-3".to_owned(), nonce: "n".to_owned() }
    }

    /// Returns the part of a Lease's holder that follows the state directory's identity.
    pub fn text(&self) -> String {
        format!("{}_{}_{}", self.place, self.process, self.nonce)
    }

    /// Returns whether the start with this text has ended.
    pub fn judge(&self, other: &str) -> Earlier {
        let mut parts = other.split('_');
        let (Some(place), Some(process)) = (parts.next(), parts.next()) else { return Earlier::MayRun };
        let mut parts = process.split('-');
        let (Some(namespace), Some(pid), Some(time)) = (parts.next(), parts.next(), parts.next()) else {
            return Earlier::MayRun;
        };
        let is_here = place == self.place && self.process.split('-').next() == Some(namespace);
        let (Ok(pid), Ok(time)) = (pid.parse::<u32>(), time.parse::<u64>()) else { return Earlier::MayRun };
        match start_time(pid) {
            Ok(found) if is_here && found != Some(time) => Earlier::Ended,
            _ => Earlier::MayRun,
        }
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the inode number of this process's PID namespace.
fn namespace() -> io::Result<String> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    Ok(link.to_string_lossy().chars().filter(char::is_ascii_digit).collect())
}

/// Returns the start time of a process in clock ticks since boot; `None` if there is no such process or it has ended.
fn start_time(pid: u32) -> io::Result<Option<u64>> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name in parentheses may contain any character, so fields are counted from the last parenthesis.
    let mut fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
    let state = fields.next();
    let time = fields.nth(18).and_then(|time| time.parse().ok());
    Ok(time.filter(|_| !matches!(state, Some("Z" | "X" | "x"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ended_process_of_this_boot_of_this_machine_is_known_to_have_ended() {
        let here = Start::here().expect("/proc is there");
        assert_ne!(here.nonce, Start::here().expect("again").nonce);
        assert_eq!(here.judge(&here.text()), Earlier::MayRun, "this very process runs");
        let process = |process: &str| Start { process: process.to_owned(), ..here.clone() };
        let namespace = namespace().expect("it has one");
        let pid = std::process::id();
        let ended = process(&format!("{namespace}-{pid}-1"));
        assert_eq!(here.judge(&ended.text()), Earlier::Ended, "its number is another's now");
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let id = child.id();
        let time = start_time(id).ok().flatten().unwrap_or(1);
        child.wait().expect("it ends");
        assert_eq!(here.judge(&process(&format!("{namespace}-{id}-{time}")).text()), Earlier::Ended);
        for other in [
            process(&format!("1-{pid}-1")),
            Start { place: here.place.replace('-', "-0"), ..ended.clone() },
            Start { place: "00-00".into(), ..ended },
        ] {
            assert_eq!(here.judge(&other.text()), Earlier::MayRun, "{other:?}");
        }
        for damaged in ["", "_", "a_b", "a_1-2", "a_1-x-y_z"] {
            assert_eq!(here.judge(damaged), Earlier::MayRun, "{damaged:?}");
        }
    }
}
