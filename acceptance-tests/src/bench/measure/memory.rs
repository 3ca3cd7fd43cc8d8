//! N2 and N3: memory of a VM beyond its guest's, in all processes, and of the agent alone.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Bench;
use super::bare::{Burst, Template};
use super::figure::Reading;
use super::figures::memory::{ABOVE, AGENT, BARE, GROWTH, LIBVIRTD, LIBVIRTD_GROWTH, OURS};
use super::fleet::{self, Fleet};
use super::host::{self, Host};
use super::libvirt::Libvirt;
use super::samples::Samples;
use super::site::Site;
use crate::{api, proc};
use crate::{berth, undo, wait};

/// The number of halted VMs from which the agent's growth is counted: the first ones also fill caches.
const FEW: usize = 20;
const MANY: usize = 60;
/// The number of VMs that boot a Linux.
const LINUX: usize = 3;
const LINUX_MEMORY: u64 = 256 << 20;
/// The time limit for the boot of a Linux under emulation on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
/// The time until started processes have settled.
const SETTLE: Duration = Duration::from_secs(15);
/// The output of the small guest when it is up.
const UP: &str = "berth-guest-ready";

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N3-control-plane"))?;
    site.start_control_plane()?;
    let host = Host::start(&bench.binaries.berth, &site, &bench.log("N3"))?;
    let access = site.access()?;
    let mut api = site.api()?;
    std::thread::sleep(SETTLE);
    let empty = proc::memory(host.pid()?)?.rss;
    fleet::make_halted(&mut api, &access, &site.images())?;
    let few = Fleet::prepare(&mut api, "few", FEW)?;
    let agent_with = |fleet: &Fleet| -> Result<f64> {
        fleet.start(&access, Duration::from_millis(100), Some(host::NAME))?;
        std::thread::sleep(SETTLE);
        Ok(proc::memory(host.pid()?)?.rss)
    };
    let with_few = agent_with(&few)?;
    let more = Fleet::prepare(&mut api, "more", MANY - FEW)?;
    let with_many = agent_with(&more)?;
    let growth = (with_many - with_few) / count(MANY - FEW);
    let others = others(&host)? / count(MANY);
    undo::halt_if_interrupted();
    few.and(more).remove(&access)?;

    // Hosts take images only from this folder of the site.
    let small = site.images().join("small.qcow2");
    std::fs::copy(&image.path, &small)?;
    let source = json!({"url": format!("file://{}", small.display()), "sha256": image.sha256});
    fleet::make_image(&mut api, &access, "small", &json!({"source": source}))?;
    api.create(api::VM_CLASS, "linux", &fleet::class(LINUX_MEMORY))?;
    let names: Vec<String> = (0..LINUX).map(|number| format!("linux-{number}")).collect();
    for name in &names {
        api.create(api::DISK, name, &json!({"image": "small"}))?;
        api.create(api::VM, name, &fleet::vm("linux", name, Some(host::NAME)))?;
    }
    for name in &names {
        wait::until(&format!("{name} to be up"), BOOT, || {
            ensure!(host.serial(&site, name)?.contains(UP), "it is still booting");
            Ok(())
        })?;
    }
    std::thread::sleep(SETTLE);
    let pids = berth::qemu_processes(host.namespace())?;
    ensure!(pids.len() == LINUX, "{} QEMUs run", pids.len());
    let above: Vec<f64> = above(&pids)?.into_iter().map(|qemu| qemu + growth.max(0.0) + others).collect();
    let instance = host.instance(&site, &names[0])?;
    let pid = pid_of(&pids, &instance)?;
    let bare = bare(&Template::of(pid, &instance)?, site.folder())?;
    host.stop()?;
    let (libvirtd, libvirtd_growth) = libvirtd(&site, &bench.log("N3-libvirtd"))?;
    Ok(vec![
        Reading::median(ABOVE, &Samples::new(above).context("VMs")?),
        Reading::median(BARE, &Samples::new(bare).context("QEMUs")?),
        Reading::once(OURS, growth.max(0.0) + others),
        Reading::once(AGENT, empty),
        Reading::once(GROWTH, growth),
        Reading::once(LIBVIRTD, libvirtd),
        Reading::once(LIBVIRTD_GROWTH, libvirtd_growth),
    ])
}

/// libvirtd's memory instead of the agent's: without machines, and the growth per machine.
fn libvirtd(site: &Site, log: &Path) -> Result<(f64, f64)> {
    let libvirt = Libvirt::start(&site.folder().join("libvirt"), log)?;
    std::thread::sleep(SETTLE);
    let empty = libvirt.memory()?;
    let image = fleet::halting_sector(&site.images());
    let with = |prefix: &str, more: usize| -> Result<f64> {
        libvirt.burst(&libvirt.prepare(prefix, more, &image)?)?;
        std::thread::sleep(SETTLE);
        libvirt.memory()
    };
    let with_few = with("few", FEW)?;
    let with_many = with("more", MANY - FEW)?;
    Ok((empty, (with_many - with_few) / count(MANY - FEW)))
}

/// The same guests on the same command line, without berth.
fn bare(template: &Template, folder: &Path) -> Result<Vec<f64>> {
    let folder = folder.join("bare");
    let burst = Burst::start(template, &folder, LINUX)?;
    for number in 0..LINUX {
        let log = folder.join(number.to_string()).join("serial.log");
        wait::until("a bare guest to be up", BOOT, || {
            ensure!(String::from_utf8_lossy(&std::fs::read(&log)?).contains(UP), "it is still booting");
            Ok(())
        })?;
    }
    std::thread::sleep(SETTLE);
    above(&burst.pids())
}

/// The memory of QEMUs without the guests' own.
fn above(pids: &[i32]) -> Result<Vec<f64>> {
    pids.iter().map(|pid| Ok(proc::memory(*pid)?.pss - proc::large_mappings(*pid, LINUX_MEMORY)?)).collect()
}

/// The memory of a host's processes other than QEMU and the agent: DHCP servers.
fn others(host: &Host) -> Result<f64> {
    let (agent, machines) = (host.pid()?, berth::qemu_processes(host.namespace())?);
    let mut sum = 0.0;
    for (pid, _) in host.namespace().processes()? {
        if pid != agent && !machines.contains(&pid) {
            sum += proc::memory(pid)?.pss;
        }
    }
    Ok(sum)
}

fn pid_of(pids: &[i32], instance: &Path) -> Result<i32> {
    let id = instance.file_name().context("a machine's folder")?.to_string_lossy().into_owned();
    let is = |pid: &&i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&id)
    };
    pids.iter().find(is).copied().context("the VM's QEMU is gone")
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
