//! N1: the time from the write of a VM object to a running QEMU, for a hundred VMs on one host.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::bare::{Burst, Template};
use super::figure::Reading;
use super::figures::starts::{
    BARE_P50, BARE_P95, BURST_P50, BURST_P95, BURST_RATIO, LIBVIRT_P50, LIBVIRT_P95, LIBVIRT_RATE_P50,
    RATE_P50, RATE_P95,
};
use super::fleet::{self, Fleet, Times};
use super::libvirt::Libvirt;
use super::samples::Samples;
use super::site::Site;
use crate::{berth, report, undo};

/// The number of VMs on the host at once.
const VMS: usize = 100;
/// The number of bursts of our VMs and of bare QEMUs, in turn.
const ROUNDS: usize = 3;
/// The interval between starts: two per second.
const GAP: Duration = Duration::from_millis(500);

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N1"))?;
    // A hundred virtual processors on few real ones.
    site.start(&["--cpu-overcommit", "64"])?;
    let access = site.access()?;
    let mut api = site.api()?;
    fleet::make_halted(&mut api, &access, &site.images())?;
    let template = template(&site)?;
    let (mut ours, mut bare): (Vec<Samples>, Vec<Samples>) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        undo::halt_if_interrupted();
        let fleet = Fleet::prepare(&mut api, &format!("burst{round}"), VMS)?;
        let times = fleet.start(&access, Duration::ZERO, None)?;
        let first = times[0].written;
        ours.push(samples(times.iter().map(|time| time.running - first)));
        fleet.remove(&access)?;
        let burst = Burst::start(&template, &site.folder().join(format!("bare{round}")), VMS)?;
        bare.push(samples(burst.running.iter().copied()));
        report::note(&format!(
            "        round {}: berth P95 {:.0} ms, bare QEMU P95 {:.0} ms",
            round + 1,
            ours[round].percentile(95),
            bare[round].percentile(95)
        ));
    }
    let fleet = Fleet::prepare(&mut api, "rate", VMS)?;
    let times: Vec<Times> = fleet.start(&access, GAP, None)?;
    let rate = samples(times.iter().map(|time| time.running - time.written));
    fleet.remove(&access)?;
    site.stop()?;
    let libvirt = under_libvirt(bench, &site)?;
    let over_rounds = |figure, rounds: &[Samples], percent| {
        let values: Vec<f64> = rounds.iter().map(|round| round.percentile(percent)).collect();
        Reading::median(figure, &Samples::new(values).expect("there was a round"))
    };
    let ratios =
        ours.iter().zip(&bare).map(|(ours, bare)| ours.percentile(95) / bare.percentile(95)).collect();
    Ok(vec![
        Reading::percentile(RATE_P50, &rate, 50),
        Reading::percentile(RATE_P95, &rate, 95),
        Reading::median(BURST_RATIO, &Samples::new(ratios).context("no rounds")?),
        over_rounds(BURST_P50, &ours, 50),
        over_rounds(BURST_P95, &ours, 95),
        over_rounds(BARE_P50, &bare, 50),
        over_rounds(BARE_P95, &bare, 95),
        Reading::percentile(LIBVIRT_RATE_P50, &libvirt.rate, 50),
        over_rounds(LIBVIRT_P50, &libvirt.bursts, 50),
        over_rounds(LIBVIRT_P95, &libvirt.bursts, 95),
    ])
}

/// The times of the same starts with libvirtd.
struct UnderLibvirt {
    bursts: Vec<Samples>,
    rate: Samples,
}

fn under_libvirt(bench: &Bench, site: &Site) -> Result<UnderLibvirt> {
    let libvirt = Libvirt::start(&site.folder().join("libvirt"), &bench.log("N1-libvirtd"))?;
    let image = fleet::halting_sector(&site.images());
    let mut bursts = Vec::new();
    for round in 0..ROUNDS {
        undo::halt_if_interrupted();
        let domains = libvirt.prepare(&format!("burst{round}"), VMS, &image)?;
        bursts.push(samples(libvirt.burst(&domains)?.into_iter()));
        libvirt.destroy(&domains)?;
        let p95 = bursts[round].percentile(95);
        report::note(&format!("        round {}: libvirtd P95 {p95:.0} ms", round + 1));
    }
    let domains = libvirt.prepare("rate", VMS, &image)?;
    let rate = samples(libvirt.one_by_one(&domains, GAP)?.into_iter());
    Ok(UnderLibvirt { bursts, rate })
}

/// The command line of one such VM. Its files stay: a burst of bare QEMUs is made from them.
fn template(site: &Site) -> Result<Template> {
    let mut api = site.api()?;
    let fleet = Fleet::prepare(&mut api, "model", 1)?;
    fleet.start(&site.access()?, Duration::ZERO, None)?;
    let instance = site.instance("model-0")?;
    let pid = *berth::qemu_processes(site.namespace())?.first().context("no QEMU runs")?;
    let kept = site.folder().join("model");
    let template = Template::of(pid, &instance)?.kept(&kept)?;
    fleet.remove(&site.access()?)?;
    Ok(template)
}

fn samples(durations: impl Iterator<Item = Duration>) -> Samples {
    Samples::new(durations.map(|duration| duration.as_secs_f64() * 1e3).collect()).expect("there are VMs")
}
