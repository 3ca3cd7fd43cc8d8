//! The network of a guest, with a firewall of another program on its host, with programs that fail, and with a DHCP server that is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::http::{self, Held};
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::platform::{Parts, Platform};
use crate::report::{Report, note};
use crate::suites::kubectl::contains_all;
use crate::wait;

const NAME: &str = "walled";
const VM: &str = "vm/walled";
const SOON: Duration = Duration::from_secs(60);
const VM_START: Duration = Duration::from_secs(90);
/// The host looks at its firewall once a minute.
const REPORTED: Duration = Duration::from_secs(120);
/// A host tries again after pauses of up to five minutes.
const RESTORED: Duration = Duration::from_secs(360);
/// A guest that got no answer asks again after a while.
const ASKED_AGAIN: Duration = Duration::from_secs(180);
/// The rules of firewalld with its default zone `public`, as it writes them.
const FIREWALLD: &str = include_str!("firewalld.nft");
/// The rules of Docker and of libvirt with nftables: Docker's drop forwarded packets, and libvirt's concern its own guests only.
const OTHERS: &str = include_str!("others.nft");
/// Where firewalld puts the interfaces of a zone.
const ZONES: &str = "filter_INPUT_ZONES";

/// Programs that berth runs, and how they fail.
const FAILURES: [(&str, &str); 2] = [
    ("dnsmasq", "failed to create listening socket: Address already in use"),
    ("nft", "Error: Could not process rule: Operation not supported"),
];

/// Runs the cases on a host of its own.
pub fn run(report: &mut Report, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let mut platform = report.step("berth up is ready on a host with the rules of other programs", || {
        let platform = Platform::embedded(parts)?;
        load(&platform, OTHERS)?;
        load(&platform, FIREWALLD)?;
        Ok(platform)
    })?;
    let failed = report.count().failed;
    let outcome = cases(report, &platform, guest);
    if outcome.is_err() || report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends berth up on that host", || platform.stop());
    Ok(())
}

fn cases(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    report.step("a guest runs on the default network", || start(platform, guest))?;
    report.case("firewalld rejects its DHCP requests: the Host names the chain and the commands", || {
        closed(platform)
    });
    report
        .case("with berth's bridges in a zone that accepts, the guest gets its address", || opened(platform));
    report
        .case("connections by its card survive another card, a security group and a public address", || {
            kept(platform)
        });
    for (number, (program, failure)) in FAILURES.into_iter().enumerate() {
        report.case(&format!("a VM shows why {program} fails, and starts once it works"), || {
            program_fails(platform, number, (program, failure))
        });
    }
    report.case("a DHCP server that is killed runs again within seconds", || killed(platform));
    report.case(
        "one that is killed again and again is started after pauses, and the Host names its network",
        || killed_again(platform),
    );
    report.case("while one cannot start, a VM on another Network does, and then it runs again", || {
        blocked(platform)
    });
    report.case("the VM can be deleted, and takes the DHCP server with it", || {
        platform.kubectl().ok(&["delete", VM, "--timeout=60s"])?;
        wait::until("the DHCP server to go", SOON, || {
            let servers = servers(platform)?;
            ensure!(servers.is_empty(), "{servers:?}");
            Ok(())
        })
    });
    Ok(())
}

/// Loads rules in the host's network namespace.
fn load(platform: &Platform, rules: &str) -> Result<()> {
    let file = platform.folder().join("rules.nft");
    fs::write(&file, rules)?;
    nft(platform, &["-f", &file.display().to_string()])
}

fn nft(platform: &Platform, arguments: &[&str]) -> Result<()> {
    let output = platform.namespace().command("nft").args(arguments).output().context("running nft")?;
    ensure!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn start(platform: &Platform, guest: &GuestImage) -> Result<()> {
    let url = platform.images().put("walled.qcow2", Content::File(guest.path.clone()));
    platform.kubectl().apply(&manifests::all(&[
        manifests::image(NAME, &url, &guest.sha256),
        manifests::bios_class(NAME, "128Mi"),
        manifests::disk(NAME, NAME, "64Mi"),
        manifests::with(manifests::vm(NAME, NAME, NAME), "networkInterfaces", json!([{"name": "nic0"}])),
    ]))?;
    platform.kubectl().condition(VM, "Running=True", None, VM_START).map(drop)
}

/// Returns the only Host.
fn host(platform: &Platform) -> Result<Value> {
    let name = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[0].metadata.name}"])?;
    platform.kubectl().object("host", name.trim())
}

fn closed(platform: &Platform) -> Result<()> {
    wait::until("the Host to name the firewall", REPORTED, || {
        let host = host(platform)?;
        let found = condition_of(&host, "Forwarding").context("no Forwarding")?;
        ensure!(found["status"] == "False" && found["reason"] == "ForeignFirewall", "{found}");
        contains_all(
            &found["message"].to_string(),
            &[
                "inet firewalld filter_INPUT",
                "DHCP (UDP port 67)",
                "firewall-cmd --permanent --zone=trusted --add-interface=bth-+",
                "iptables -I DOCKER-USER -i bth-+ -j ACCEPT",
            ],
        )
    })?;
    let leases = leases(platform)?;
    ensure!(leases.trim().is_empty(), "the guest has an address: {leases}");
    Ok(())
}

/// Does to the rules what the commands in the message do.
fn opened(platform: &Platform) -> Result<()> {
    for direction in ["iifname", "oifname"] {
        nft(platform, &["insert", "rule", "ip", "filter", "DOCKER-USER", direction, "bth-*", "accept"])?;
    }
    for (chain, zone) in [(ZONES, "filter_IN_trusted"), ("filter_FORWARD_ZONES", "filter_FWD_trusted")] {
        nft(platform, &["insert", "rule", "inet", "firewalld", chain, "iifname", "bth-*", "goto", zone])?;
    }
    wait::until("the Host to find no obstacle", REPORTED, || {
        let host = host(platform)?;
        let found = condition_of(&host, "Forwarding").context("no Forwarding")?;
        ensure!(found["status"] == "True", "{found}");
        Ok(())
    })?;
    wait::until("the guest to take its lease", ASKED_AGAIN, || {
        let leases = leases(platform)?;
        ensure!(!leases.trim().is_empty(), "no lease");
        Ok(())
    })
}

/// Reads the leases of all networks of the host.
fn leases(platform: &Platform) -> Result<String> {
    let mut all = String::new();
    for network in fs::read_dir(platform.host().state().join("network"))? {
        all += &fs::read_to_string(network?.path().join("leases")).unwrap_or_default();
    }
    Ok(all)
}

/// Holds a connection during each change of the guest's cards.
fn kept(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let group = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "SecurityGroup", "metadata": {"name": NAME},
        "spec": {"ingress": [{"name": "web", "protocol": "tcp", "ports": ["80"], "cidrs": ["0.0.0.0/0"]}]},
    });
    kubectl.apply(&group.to_string())?;
    kubectl.apply(&manifests::public_ip(NAME, "default").to_string())?;
    let vm = kubectl.object("vm", NAME)?;
    let address = vm["status"]["interfaces"][0]["address"].as_str().context("no address")?;
    let changes = [
        ("a second card", json!([{"name": "nic0"}, {"name": "nic1"}])),
        ("no second card", json!([{"name": "nic0"}])),
        ("a group", json!([{"name": "nic0", "securityGroups": [NAME]}])),
        ("a public address", json!([{"name": "nic0", "securityGroups": [NAME], "publicIP": NAME}])),
        ("no public address", json!([{"name": "nic0", "securityGroups": [NAME]}])),
        ("no group", json!([{"name": "nic0"}])),
    ];
    for (what, interfaces) in changes {
        let held = Held::open(platform.namespace(), address, SOON)?;
        let patch = json!({"spec": {"networkInterfaces": interfaces}}).to_string();
        kubectl.ok(&["patch", VM, "--type=merge", "-p", &patch])?;
        let vm = kubectl.until(VM, what, SOON, |vm| are_in_effect(vm, &interfaces))?;
        if let Some(public) = vm["status"]["publicAddress"].as_str() {
            http::get_within(platform.neighbour(), public, "/", SOON)?;
        }
        let page = held.get("/").with_context(|| format!("the connection with {what}"))?;
        contains_all(&page, &["hostname=walled"])?;
    }
    kubectl.delete(&format!("publicip/{NAME}"))?;
    kubectl.delete(&format!("securitygroup/{NAME}"))
}

/// Whether a VM has these interfaces.
fn are_in_effect(vm: &Value, interfaces: &Value) -> bool {
    let status = &vm["status"];
    let found = status["interfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wanted = interfaces.as_array().map(Vec::as_slice).unwrap_or_default();
    let has_groups = |(found, wanted): (&Value, &Value)| {
        found["securityGroups"].as_array().map_or(0, Vec::len)
            == wanted["securityGroups"].as_array().map_or(0, Vec::len)
    };
    let is_synced =
        condition_of(vm, "InterfacesSynced").is_none_or(|condition| condition["status"] == "True");
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(has_groups)
        && status["publicAddress"].is_string() == wanted.iter().any(|one| one["publicIP"].is_string())
        && status["observedGeneration"] == vm["metadata"]["generation"]
        && is_synced
}

/// A VM on a network of its own does not start while this program fails, and its condition has the program's own message.
fn program_fails(platform: &Platform, number: usize, (program, failure): (&str, &str)) -> Result<()> {
    let kubectl = platform.kubectl();
    let (name, folder) = (format!("without-{program}"), platform.host().programs());
    let (stub, vm) = (folder.join(program), format!("vm/{name}"));
    fs::create_dir_all(&folder)?;
    fs::write(&stub, format!("#!/bin/sh\necho '{failure}' >&2\nexit 2\n"))?;
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755))?;
    let interfaces = json!([{"name": "nic0", "network": name}]);
    let shown = kubectl
        .apply(&manifests::all(&[
            manifests::network(&name, &format!("10.99.{number}.0/24")),
            manifests::blank_disk(&name, "64Mi"),
            manifests::with(manifests::vm(&name, NAME, &name), "networkInterfaces", interfaces),
        ]))
        .and_then(|_| {
            let message = format!("{program} failed: {failure}");
            kubectl.until(&vm, &message, VM_START, |vm| {
                let ready = condition_of(vm, "Ready").filter(|ready| ready["status"] == "False");
                let text = ready.and_then(|ready| ready["message"].as_str());
                text.is_some_and(|text| text.contains(&message))
            })
        });
    // In any case: later cases need the program.
    fs::remove_file(&stub)?;
    shown?;
    kubectl.condition(&vm, "Running=True", None, VM_START)?;
    for object in [vm, format!("disk/{name}"), format!("network/{name}")] {
        kubectl.delete(&object)?;
    }
    wait::until("only the server of the default network", SOON, || {
        let running = servers(platform)?;
        ensure!(running.len() == 1, "{running:?}");
        Ok(())
    })?;
    wait::until("the Host to name no network", SOON, || {
        let host = host(platform)?;
        ensure!(condition_of(&host, "NetworksServed").is_none(), "{host:#}");
        Ok(())
    })
}

/// Lists the process ids of the host's DHCP servers.
fn servers(platform: &Platform) -> Result<Vec<i32>> {
    let all = platform.namespace().processes()?;
    let is_one =
        |(_, command): &(i32, String)| command.contains("dnsmasq") && command.contains("--conf-file");
    Ok(all.into_iter().filter(is_one).map(|(pid, _)| pid).collect())
}

/// Kills the DHCP server, and returns how long the host was without one.
fn kill_server(platform: &Platform, limit: Duration) -> Result<Duration> {
    let before = servers(platform)?;
    ensure!(!before.is_empty(), "no DHCP server runs");
    for server in &before {
        kill(Pid::from_raw(*server), Signal::SIGKILL).with_context(|| format!("killing process {server}"))?;
    }
    let begun = Instant::now();
    wait::until("the DHCP server to run again", limit, || {
        let now = servers(platform)?;
        ensure!(
            now.len() == before.len() && now.iter().all(|pid| !before.contains(pid)),
            "{before:?} {now:?}"
        );
        Ok(())
    })?;
    Ok(begun.elapsed())
}

fn killed(platform: &Platform) -> Result<()> {
    let pause = kill_server(platform, SOON)?;
    ensure!(pause < Duration::from_secs(10), "it took {pause:?}");
    let host = host(platform)?;
    ensure!(condition_of(&host, "NetworksServed").is_none(), "{host:#}");
    Ok(())
}

fn killed_again(platform: &Platform) -> Result<()> {
    for _ in 0..2 {
        kill_server(platform, SOON)?;
    }
    wait::until("the Host to name the network", REPORTED, || {
        let host = host(platform)?;
        let found = condition_of(&host, "NetworksServed").context("no NetworksServed")?;
        ensure!(found["status"] == "False" && found["reason"] == "NetworkServerEnds", "{found}");
        contains_all(&found["message"].to_string(), &["Network default/default", "3 times"])
    })
}

/// Puts a folder in place of the configuration of the server of the default network.
fn blocked(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let network = kubectl.object("network", "default")?;
    let vni = network["status"]["vni"].as_i64().context("the network has no identifier")?;
    let folder = platform.host().state().join("network").join(format!("bth-{vni:06x}"));
    let configuration = folder.join("dnsmasq.conf");
    fs::remove_file(&configuration)?;
    fs::create_dir(&configuration)?;
    for server in servers(platform)? {
        kill(Pid::from_raw(server), Signal::SIGKILL).with_context(|| format!("killing process {server}"))?;
    }
    wait::until("the Host to name the cause", REPORTED, || {
        let host = host(platform)?;
        let found = condition_of(&host, "NetworksServed").context("no NetworksServed")?;
        contains_all(&found["message"].to_string(), &["Network default/default", "cannot be started again"])
    })?;
    let interfaces = json!([{"name": "nic0", "network": "open"}]);
    kubectl.apply(&manifests::all(&[
        manifests::network("open", "10.98.0.0/24"),
        manifests::disk("open", NAME, "64Mi"),
        manifests::with(manifests::vm("open", NAME, "open"), "networkInterfaces", interfaces),
    ]))?;
    kubectl.condition("vm/open", "Running=True", None, VM_START)?;
    ensure!(servers(platform)?.len() == 1, "the server of its network");
    fs::remove_dir(&configuration)?;
    kubectl.ok(&["delete", "vm/open", "disk/open", "network/open", "--timeout=90s"])?;
    wait::until("the DHCP server of the default network to run", RESTORED, || {
        let running = servers(platform)?;
        ensure!(configuration.is_file() && running.len() == 1, "{running:?}");
        Ok(())
    })
}
