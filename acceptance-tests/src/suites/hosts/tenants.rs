//! Two tenants, each with a network over two hosts: they are isolated from each other.

use std::thread;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::{ANSWER, SOON, message, page, reaches};
use crate::fleet::{Fleet, PUBLIC};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::manifests;
use crate::namespace::Namespace;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::wait;

/// Each tenant's name and the range of its network.
const TENANTS: [(&str, &str); 2] = [("red", "10.81.0.0/24"), ("blue", "10.82.0.0/24")];
/// The hosts of each tenant's VMs.
const HOSTS: [&str; 2] = ["h2", "h3"];

/// A running VM.
struct Guest {
    tenant: &'static str,
    name: String,
    private: String,
    public: String,
}

/// Runs the cases; both tenants are deleted afterwards.
pub fn run(report: &mut Report, fleet: &Fleet, guest: &GuestImage) {
    let guests = report.step("two tenants get a network and a VM on each of two hosts", || {
        let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
        let pool = manifests::with(manifests::pool("segment", PUBLIC), "mode", json!("l2"));
        fleet.kubectl().apply(&pool.to_string())?;
        for (tenant, cidr) in TENANTS {
            fleet.kubectl().ok(&["create", "namespace", tenant])?;
            fleet.kubectl().apply(&manifests::all(&objects(tenant, cidr, &url, &guest.sha256)))?;
        }
        guests(fleet)
    });
    if let Ok(guests) = guests {
        cases(report, fleet, &guests);
    }
    overlap(report, fleet);
    report.case("both tenants are taken away", || {
        for (tenant, _) in TENANTS {
            let kinds = "images,vmclasses,networks,disks,publicips,vms";
            fleet.kubectl().ok(&["delete", kinds, "--all", "-n", tenant, "--timeout=60s"])?;
            fleet.kubectl().ok(&["delete", "namespace", tenant, "--wait=false"])?;
        }
        Ok(())
    });
}

fn cases(report: &mut Report, fleet: &Fleet, guests: &[Guest]) {
    let pairs = || {
        guests
            .iter()
            .flat_map(|from| guests.iter().filter(|to| to.name != from.name).map(move |to| (from, to)))
    };
    report.case("VMs of one tenant reach each other across hosts", || {
        for (from, to) in pairs().filter(|(from, to)| from.tenant == to.tenant) {
            wait::until(&format!("{} to reach {}", from.name, to.name), SOON, || {
                reaches(fleet.outside(), &from.public, &to.private, &to.name)
            })?;
        }
        Ok(())
    });
    report.case("VMs of different tenants do not, on one host or on two", || {
        let outside: &Namespace = fleet.outside();
        // Each waits for an answer that does not come.
        thread::scope(|scope| {
            let others = pairs().filter(|(from, to)| from.tenant != to.tenant);
            let asked: Vec<_> =
                others.map(|(from, to)| scope.spawn(move || does_not_reach(outside, from, to))).collect();
            asked.into_iter().try_for_each(|asked| asked.join().map_err(|_| anyhow!("a check panicked"))?)
        })
    });
}

fn does_not_reach(outside: &Namespace, from: &Guest, to: &Guest) -> Result<()> {
    let path = format!("/cgi-bin/reach?to={}", to.private);
    let text = http::get(outside, &from.public, &path, SOON)?;
    ensure!(field(&text, "ping")? == "no", "{} pings {}: {text}", from.name, to.name);
    ensure!(!text.contains(&format!("hostname={}", to.name)), "{} reads {}: {text}", from.name, to.name);
    Ok(())
}

/// Hosts route all tenants' networks, so no two networks may share an address.
fn overlap(report: &mut Report, fleet: &Fleet) {
    report.case(
        "a network that overlaps another tenant's is refused, and what needs it is not bound",
        || {
            let (younger, _) = TENANTS[1];
            let kubectl = fleet.kubectl().within(younger);
            let vm = manifests::vm("late", "web", "late");
            let card = json!([{"name": "nic0", "network": "late"}]);
            kubectl.apply(&manifests::all(&[
                manifests::network("late", "10.81.0.128/25"),
                manifests::blank_disk("late", "64Mi"),
                manifests::with(vm, "networkInterfaces", card),
            ]))?;
            let network = kubectl.condition("network/late", "Stalled=True", Some("InvalidSpec"), SOON)?;
            // The message does not name the network: it belongs to another tenant.
            let output = ["overlaps that of a network of another namespace"];
            contains_all(message(&network, "Stalled")?, &output)?;
            let vm = kubectl.condition("vm/late", "Ready=False", Some("WaitingForNetwork"), SOON)?;
            contains_all(message(&vm, "Ready")?, &output)?;
            ensure!(crate::fleet::host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
            ["vm/late", "disk/late", "network/late"].iter().try_for_each(|object| kubectl.delete(object))
        },
    );
}

fn objects(tenant: &str, cidr: &str, url: &str, sha256: &str) -> Vec<Value> {
    let own = |mut object: Value| {
        object["metadata"]["namespace"] = tenant.into();
        object
    };
    let mut all = vec![
        own(manifests::network("private", cidr)),
        own(manifests::class("web", 1, "256Mi")),
        own(manifests::image("web", url, sha256)),
    ];
    for host in HOSTS {
        let name = format!("{tenant}-{host}");
        let vm = manifests::vm(&name, "web", &name);
        let vm = manifests::with(vm, "placement", json!({"host": host}));
        let card = json!([{"name": "nic0", "network": "private", "publicIP": name}]);
        all.push(own(manifests::disk(&name, "web", "64Mi")));
        all.push(own(manifests::public_ip(&name, "segment")));
        all.push(own(manifests::with(vm, "networkInterfaces", card)));
    }
    all
}

fn guests(fleet: &Fleet) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for (tenant, _) in TENANTS {
        let kubectl = fleet.kubectl().within(tenant);
        for host in HOSTS {
            let name = format!("{tenant}-{host}");
            let vm = kubectl.condition(&format!("vm/{name}"), "Ready=True", None, ANSWER)?;
            let address = kubectl.condition(&format!("publicip/{name}"), "Ready=True", None, SOON)?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let guest = Guest {
                tenant,
                private: text(&vm["status"]["interfaces"][0]["address"]),
                public: text(&address["status"]["address"]),
                name,
            };
            let text = page(fleet, &guest.public, "/")?;
            ensure!(field(&text, "hostname")? == guest.name, "{text}");
            guests.push(guest);
        }
    }
    Ok(guests)
}
