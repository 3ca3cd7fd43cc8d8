//! Reads from `/proc` how the host runs the QEMU of a machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ProcessDetails;

/// The device by which the host's kernel moves the packets of a network card.
pub(super) const VHOST_NET: &str = "/dev/vhost-net";
/// More open files than any QEMU has.
const MOST_FILES: usize = 8192;

/// Reads the details of a machine's process. All are unknown of one that has ended.
pub(super) fn of(pid: i32) -> ProcessDetails {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let cgroups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
    ProcessDetails { cgroup: cgroup(&cgroups), vhost_net: has_vhost_net(&folder.join("fd")) }
}

/// Returns whether a process with these files has the device open. None: they cannot be read.
fn has_vhost_net(files: &Path) -> Option<bool> {
    let files = fs::read_dir(files).ok()?.flatten().take(MOST_FILES);
    let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    Some(targets.any(|target| target == Path::new(VHOST_NET)))
}

/// Returns the cgroup that limits the CPU time of a process: that of v1's CPU controller, or else of v2. `text`: the content of
/// `/proc/PID/cgroup`.
fn cgroup(text: &str) -> Option<String> {
    let entries = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of_v1 = entries().find(|(controllers, _)| controllers.split(',').any(|name| name == "cpu"));
    let of_v2 = || entries().find(|(controllers, path)| controllers.is_empty() && *path != "/");
    let (_, path) = of_v1.or_else(of_v2)?;
    (path != "/").then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_cgroup_is_that_of_the_cpu_controller_of_v1_or_of_v2() {
        let of = |text: &str| cgroup(text).unwrap_or_default();
        assert_eq!(of("0::/berth/i-1\n"), "/berth/i-1");
        assert_eq!(
            of("4:memory:/berth/i-1\n3:cpu,cpuacct:/berth/i-2\n1:name=systemd:/x\n0::/\n"),
            "/berth/i-2"
        );
        assert_eq!(
            of("0::/system.slice/berth-machines.service/i-1:2\n"),
            "/system.slice/berth-machines.service/i-1:2"
        );
        for without in ["", "0::/\n", "garbage", "3:cpu:/\n"] {
            assert_eq!(cgroup(without), None, "{without:?}");
        }
    }

    #[test]
    fn a_process_has_vhost_if_one_of_its_files_is_the_device() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = folder.path();
        assert_eq!(has_vhost_net(&files.join("gone")), None);
        symlink("/dev/net/tun", files.join("3")).expect("made");
        assert_eq!(has_vhost_net(files), Some(false));
        symlink(VHOST_NET, files.join("4")).expect("made");
        assert_eq!(has_vhost_net(files), Some(true));
    }

    #[test]
    fn of_a_process_that_has_ended_nothing_is_known() {
        // Above the largest number of a process.
        assert_eq!(of(1 << 30), ProcessDetails::default());
        assert!(of(i32::try_from(std::process::id()).expect("small")).vhost_net.is_some());
    }
}
