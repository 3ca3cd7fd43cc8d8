//! The serial console of a Debian guest, and two builds of berth under it while it writes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::ssh;
use crate::next_version::NextVersion;
use crate::platform::Platform;
use crate::report::Report;
use crate::suites::console;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;
use crate::wait;

const SOON: Duration = Duration::from_secs(90);
/// Writes without a break, and says when a write fails.
const WRITER: &str = "nohup sh -c 'while :; do \
                      dd if=/dev/zero of=/home/debian/written bs=64k count=16 conv=fsync 2>/dev/null \
                      && echo . >>/home/debian/done || echo . >>/home/debian/failed; done' \
                      >/dev/null 2>&1 </dev/null &";
/// The boot, the number of finished writes, that of failed ones, and that of I/O errors in the kernel's log.
const STATE: &str = "cat /proc/sys/kernel/random/boot_id; wc -l </home/debian/done; \
                     cat /home/debian/failed 2>/dev/null | wc -l; sudo dmesg | grep -c 'I/O error'; true";

/// Runs the cases on the VM of the quickstart.
pub fn cases(
    report: &mut Report,
    platform: &mut Platform,
    project: &Project,
    address: &str,
    next: &NextVersion,
) {
    report.case("the serial console has the messages of cloud-init and a login prompt", || {
        contains_all(&console::log(platform, "web")?, &["cloud-init[", "login:"])
    });
    report.case("the next version and this one again run under the guest while it writes", || {
        let this = platform.host().program().to_owned();
        ssh(platform, project, address, WRITER)?.success()?;
        let before = writes(platform, project, address, 0)?;
        let pid = platform.qemu()?;
        let after = replace(platform, &next.berth)
            .and_then(|()| writes(platform, project, address, before.1))
            .and_then(|between| {
                ensure!(platform.qemu()? == pid, "another process");
                // No chance to say goodbye.
                platform.crash()?;
                platform.host_mut().set_program(&this);
                platform.start()?;
                writes(platform, project, address, between.1)
            })?;
        ssh(platform, project, address, "pkill -f 'home/debian/[w]ritten'; true")?.success()?;
        ensure!(platform.qemu()? == pid, "another process");
        ensure!(after.0 == before.0, "the guest rebooted");
        platform.kubectl().condition("vm/web", "Ready=True", None, SOON)?;
        project.plan_is_empty()
    });
}

fn replace(platform: &mut Platform, program: &Path) -> Result<()> {
    platform.stop()?;
    platform.host_mut().set_program(program);
    platform.start()
}

/// Waits until the guest has done more writes than `before`. Returns its boot and the number of its writes: none has failed.
fn writes(platform: &Platform, project: &Project, address: &str, before: u64) -> Result<(String, u64)> {
    wait::until("further writes of the guest", SOON, || {
        let text = ssh(platform, project, address, STATE)?.success()?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let [boot, done, failed, errors] = lines[..] else {
            anyhow::bail!("four lines are expected: {text}");
        };
        ensure!(failed == "0" && errors == "0", "writes failed: {text}");
        let done: u64 = done.parse()?;
        ensure!(done > before, "{done} writes, as before");
        Ok((boot.to_owned(), done))
    })
}
