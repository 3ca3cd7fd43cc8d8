//! Hosts with clocks that jump by hours, while the control plane's clock jumps the other way: durations use the monotonic
//! clock, which cannot be set, so no host counts as silent, no VM is started twice, and tokens and certificates keep their
//! remaining lifetime.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::{Kubectl, condition_of};
use crate::manifests;
use crate::platform::Parts;
use crate::report::{Report, note};
use crate::scratch::Scratch;
use crate::wait;

const HOUR: i64 = 3600;
const ANSWER: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// The number of Lease renewals to wait for. A Lease lasts 40 seconds and is renewed every 15, for the first time a moment after a jump: the
/// fourth one comes when a Lease from before the jump would have expired.
const RENEWALS: usize = 4;
const RENEWED: Duration = Duration::from_secs(150);
const HOSTS: [&str; 2] = ["h1", "h2"];

/// The clocks of the two machines. The control plane is on the first.
struct Clocks {
    control: Clock,
    host: Clock,
}

impl Clocks {
    /// Sets both clocks relative to the correct time, in seconds.
    fn jump(&self, control: i64, host: i64) -> Result<()> {
        self.control.jump(control)?;
        self.host.jump(host)
    }
}

/// Runs the cases on hosts of its own.
pub fn run(report: &mut Report, parts: &Parts, guest: &GuestImage, library: &Path) -> Result<()> {
    let folder = Scratch::new()?;
    let clocks = Clocks {
        control: Clock::new(library, &folder.path().join("control"))?,
        host: Clock::new(library, &folder.path().join("host"))?,
    };
    let mut fleet = report.step("berth up and a host that joins it have clocks of their own", || {
        let mut fleet = Fleet::embedded_on(parts, |first| {
            first.berth.set_clock(&clocks.control);
            Ok(())
        })?;
        let mut second = fleet.machine(2)?;
        second.berth.set_clock(&clocks.host);
        fleet.join_on(second, &[])?;
        Ok(fleet)
    })?;
    let outcome = chapters(report, &mut fleet, guest, &clocks);
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends both", || fleet.stop());
    Ok(())
}

fn chapters(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage, clocks: &Clocks) -> Result<()> {
    let before = report.step("a guest runs on each host", || {
        start(fleet, guest)?;
        running(fleet)
    })?;
    report.case("the clocks are the programs': a Lease has the time of its own host", || {
        clocks.jump(-24 * HOUR, 24 * HOUR)?;
        renewals(fleet, 1)?;
        // A program may have its former time for a moment.
        wait::until("both Leases to have the new times", SOON, || {
            let days = [day_of_lease(fleet, "h1")?, day_of_lease(fleet, "h2")?];
            ensure!(days[0] < days[1], "h1 and h2 are of {days:?}");
            Ok(())
        })
    });
    report.case(
        "a host an hour ahead of a control plane an hour behind is not silent, and its guest goes on",
        || {
            clocks.jump(-HOUR, HOUR)?;
            nothing_happens(fleet, &before, RENEWALS)
        },
    );
    report.case("the host an hour behind, the control plane an hour ahead: neither", || {
        clocks.jump(HOUR, -HOUR)?;
        nothing_happens(fleet, &before, RENEWALS)
    });
    report.case("the host's next agent is let in with its token, and adopts the guest that runs", || {
        fleet.member_mut("h2")?.berth.crash()?;
        fleet.member_mut("h2")?.berth.spawn_joined(None, &[])?;
        fleet.host_is_ready("h2")?;
        fleet.kubectl().condition("vm/on-h2", "Ready=True", None, SOON)?;
        ensure!(running(fleet)? == before, "now {:?}, before {before:?}", running(fleet)?);
        Ok(())
    });
    report.case("so is berth up, with the certificate it has", || {
        fleet.member_mut("h1")?.berth.crash()?;
        fleet.member_mut("h1")?.berth.spawn_up()?;
        renewals(fleet, 1)?;
        for name in HOSTS {
            fleet.host_is_ready(name)?;
            fleet.kubectl().condition(&format!("vm/on-{name}"), "Ready=True", None, SOON)?;
        }
        ensure!(running(fleet)? == before, "now {:?}, before {before:?}", running(fleet)?);
        Ok(())
    });
    report.case("a new host joins with a new token, and a new VM runs", || {
        fleet.join(3, &[])?;
        let vm = manifests::with(manifests::vm("late", "clocks", "late"), "placement", json!({"host": "h3"}));
        fleet.kubectl().apply(&manifests::all(&[manifests::blank_disk("late", "64Mi"), vm]))?;
        fleet.kubectl().condition("vm/late", "Running=True", None, ANSWER).map(drop)
    });
    report.case("with the right time again nothing has happened either", || {
        clocks.jump(0, 0)?;
        nothing_happens(fleet, &before, 2)
    });
    report.case("what was there can be deleted, and leaves no QEMU", || {
        fleet.kubectl().ok(&["delete", "vms", "--all", "--timeout=85s"])?;
        for member in fleet.members() {
            ensure!(member.qemu()?.is_empty(), "{} still runs one", member.name);
        }
        Ok(())
    });
    Ok(())
}

fn start(fleet: &Fleet, guest: &GuestImage) -> Result<()> {
    let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let mut all =
        vec![manifests::image("clocks", &url, &guest.sha256), manifests::bios_class("clocks", "128Mi")];
    for host in HOSTS {
        let name = format!("on-{host}");
        let vm = manifests::vm(&name, "clocks", &name);
        all.push(manifests::disk(&name, "clocks", "64Mi"));
        all.push(manifests::with(vm, "placement", json!({"host": host})));
    }
    fleet.kubectl().apply(&manifests::all(&all))?;
    for host in HOSTS {
        fleet.kubectl().condition(&format!("vm/on-{host}"), "Ready=True", None, ANSWER)?;
    }
    Ok(())
}

/// The state that must not change: each host's QEMU, by pid, and the boot id of its guest.
fn running(fleet: &Fleet) -> Result<Vec<(Vec<i32>, String)>> {
    let guest = |host: &str| {
        let member = fleet.member(host)?;
        let vm = fleet.kubectl().object("vm", &format!("on-{host}"))?;
        let address = vm["status"]["interfaces"][0]["address"].as_str().context("no address")?;
        let page = http::get_within(member.namespace(), address, "/cgi-bin/uptime", ANSWER)?;
        // A starting agent probes QEMU's capabilities with a short-lived QEMU of its own.
        let qemu = wait::until(&format!("{host} to run one QEMU"), SOON, || {
            let qemu = member.qemu()?;
            ensure!(qemu.len() == 1, "it runs {qemu:?}");
            Ok(qemu)
        })?;
        Ok((qemu, field(&page, "boot_id")?.to_owned()))
    };
    HOSTS.iter().map(|host| guest(host)).collect()
}

/// Checks that, for `times` Lease renewals of both hosts, neither counts as silent and no guest is touched.
fn nothing_happens(fleet: &Fleet, before: &[(Vec<i32>, String)], times: usize) -> Result<()> {
    renewals(fleet, times)?;
    let now = running(fleet)?;
    ensure!(now == before, "now {now:?}, before {before:?}");
    for host in HOSTS {
        fleet.kubectl().condition(&format!("vm/on-{host}"), "Ready=True", None, SOON)?;
        ensure!(fleet.host_of(&format!("on-{host}"))? == host, "it moved");
    }
    Ok(())
}

/// Waits until both hosts have renewed their Leases `count` times; they must stay ready.
fn renewals(fleet: &Fleet, count: usize) -> Result<()> {
    let mut seen = HOSTS.map(|host| (host, BTreeSet::new()));
    wait::until(&format!("both hosts to renew their Leases {count} times"), RENEWED, || {
        // While berth up restarts, nothing responds.
        let leases = listed(&fleet.kubectl().within("berth-system"), "leases")?;
        let hosts = listed(fleet.kubectl(), "hosts")?;
        for (host, versions) in &mut seen {
            let named = |objects: &[Value]| {
                let object = objects.iter().find(|object| object["metadata"]["name"] == *host).cloned();
                object.with_context(|| format!("no {host}"))
            };
            let object = named(&hosts)?;
            let ready = condition_of(&object, "Ready").context("no Ready")?;
            if ready["status"] != "True" {
                return Err(wait::Hopeless(format!("host {host} is not ready: {ready:#}")).into());
            }
            versions.insert(named(&leases)?["metadata"]["resourceVersion"].to_string());
        }
        ensure!(seen.iter().all(|(_, versions)| versions.len() > count), "so far {seen:?}");
        Ok(())
    })
}

/// All objects of a kind.
fn listed(kubectl: &Kubectl, kind: &str) -> Result<Vec<Value>> {
    let list: Value = serde_json::from_str(&kubectl.ok(&["get", kind, "-o", "json"])?)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// The date of a host's last Lease renewal.
fn day_of_lease(fleet: &Fleet, host: &str) -> Result<String> {
    let lease = fleet.kubectl().within("berth-system").object("lease", host)?;
    let at = lease["spec"]["renewTime"].as_str().context("a Lease without renewTime")?;
    Ok(at.split('T').next().unwrap_or_default().to_owned())
}
