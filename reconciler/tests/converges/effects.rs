//! Each change of a VM and of its class, for each power: whether its machine goes on, and what waits for the next start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use berth_api::{Power, VM, VMState};
use berth_host::{HugePagesFacts, PciDeviceFacts, ShareFacts, UsbDeviceFacts, VgpuFacts};
use serde_json::{Value, json};

use crate::changes::{self, Change, Seen};
use crate::rig::{self, Rig, converges};
use crate::{until_host, web_runs};

/// The time after which a change has had its effect.
const SETTLES: Duration = Duration::from_secs(10);

/// The things that a change leaves alone unless it restarts the VM.
#[derive(Debug, PartialEq)]
struct Witness {
    pid: Option<i64>,
    /// The number of the guest's boot.
    boot: Option<u64>,
    launches: u64,
    saved_states: usize,
    /// The sizes of the volumes.
    volumes: BTreeMap<String, u64>,
}

impl Witness {
    async fn of(rig: &Rig) -> Self {
        let hypervisor = rig.system.hypervisor();
        let instance = hypervisor.instances().into_iter().next();
        Self {
            pid: rig.pid("web").await,
            boot: instance.and_then(|instance| hypervisor.view(&instance)?.boot),
            launches: hypervisor.launches(),
            saved_states: rig.system.saved_states_now().len(),
            volumes: rig.system.volumes_now(),
        }
    }
}

/// The spec of a VM with disks, a drive and a network card. Its class is `small`.
fn vm(power: Power) -> Value {
    json!({
        "class": "small", "power": power.as_str(),
        "disks": [{"name": "web-root", "boot": true}, {"name": "web-data"}],
        // A VM with a medium in a drive is not suspended.
        "cdroms": [{"name": "a", "image": "iso-c", "connected": power != Power::Suspended}],
        "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
        "stop": {"mode": "Graceful", "gracePeriodSeconds": 5},
    })
}

/// The spec of the class.
fn class() -> Value {
    json!({"cpus": 2, "memory": "512Mi", "firmware": "BIOS"})
}

/// A host with devices and folders, and what the changes name.
async fn stock(rig: &Rig) {
    rig.system.change_facts(|facts| {
        facts.pci_devices = vec![PciDeviceFacts {
            name: "gpu".to_owned(),
            address: "0000:01:00.0".to_owned(),
            functions: vec!["0000:01:00.0".to_owned()],
            groups: vec![1],
            ..PciDeviceFacts::default()
        }];
        facts.usb_devices = vec![UsbDeviceFacts {
            name: "key".to_owned(),
            port: "1-2".to_owned(),
            bus: 1,
            number: 4,
            ..UsbDeviceFacts::default()
        }];
        facts.vgpus = vec![VgpuFacts {
            name: "a40-8q".to_owned(),
            parent: "0000:41:00.0".to_owned(),
            mdev_type: "nvidia-558".to_owned(),
            usable: 1,
            ..VgpuFacts::default()
        }];
        facts.shares = vec![ShareFacts { name: "data".to_owned(), read_only: false, problem: None }];
        facts.dedicated.cpus = [4, 5, 6].into();
        facts.huge_pages = vec![HugePagesFacts { page_bytes: 2 << 20, total: 512, free: 512 }];
    });
    rig.set_secret("team", "ssh-ed25519 BBBB b\n").await;
    rig.set_secret_value("login", "password", "$6$salt$first").await;
    for name in ["small", "other"] {
        rig.apply("VMClass", name, class()).await;
    }
    let source = json!({"url": rig::IMAGE_URL, "sha256": rig::IMAGE_SHA256});
    rig.apply("Image", "debian", json!({"source": source})).await;
    for digit in ["c", "d"] {
        let source = json!({"url": rig::iso_url(digit), "sha256": digit.repeat(64)});
        rig.apply("Image", &format!("iso-{digit}"), json!({"source": source, "format": "iso"})).await;
    }
    rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi"})).await;
    rig.apply("Disk", "web-data", json!({"size": "1Gi"})).await;
    rig.apply("PublicIP", "web", json!({})).await;
    rig.apply("SecurityGroup", "web", json!({"ingress": [], "egress": []})).await;
}

/// Waits until the VM has this power, and is as declared.
async fn until_power(rig: &Rig, power: Power) {
    let wanted = match power {
        Power::Running => VMState::Running,
        Power::Stopped => VMState::Stopped,
        Power::Paused => VMState::Paused,
        Power::Suspended => VMState::Suspended,
    };
    let holds = |vm: &VM| rig::is_ready(vm) && rig::state(vm) == Some(wanted);
    rig.until_vm("web", &format!("is {wanted:?} and ready"), holds).await;
}

/// Waits until the change has had its effect, and returns what waits for the next start of the VM.
async fn settled(rig: &Rig) -> Vec<String> {
    let is_seen = |vm: &VM| {
        let seen = vm.status.as_ref().map(|status| status.observed_generation);
        seen == vm.metadata.generation
    };
    rig.until_vm("web", "is seen", is_seen).await;
    tokio::time::sleep(SETTLES).await;
    let pending = RefCell::new(Vec::new());
    let read = |vm: &VM| {
        let status = vm.status.clone().unwrap_or_default();
        pending.replace(status.pending_power_cycle);
        true
    };
    rig.until_vm("web", "is read", read).await;
    pending.into_inner()
}

/// Declares the object with the change, and everything else as it was.
async fn make(rig: &Rig, change: &Change, power: Power) -> Result<(), String> {
    let with = |mut spec: Value| {
        for (key, value) in change.spec.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    };
    // The declarations of the change before this one go first.
    rig.apply("VMClass", "small", class()).await;
    if change.kind == "VM" {
        return rig.try_apply("VM", "web", with(vm(power))).await;
    }
    rig.apply("VM", "web", vm(power)).await;
    rig.try_apply("VMClass", "small", with(class())).await
}

async fn each_change(rig: &Rig, power: Power) {
    stock(rig).await;
    rig.apply("VM", "web", vm(Power::Running)).await;
    web_runs(rig).await;
    let boot = || {
        let hypervisor = rig.system.hypervisor();
        hypervisor.instances().first().and_then(|instance| hypervisor.view(instance)?.boot)
    };
    until_host("the guest has booted", || boot().is_some()).await;
    let booted = Witness::of(rig).await;
    rig.apply("VM", "web", vm(power)).await;
    until_power(rig, power).await;
    let mut before = Witness::of(rig).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for change in changes::all() {
        let named = format!("{} {:?} while {power:?}", change.kind, change.attributes);
        if let Some(file) = change.elsewhere {
            assert!(root.join(file).is_file(), "{named}: there is no {file}");
            continue;
        }
        let seen = change.with_power(power);
        let made = make(rig, &change, power).await;
        assert_eq!(made.is_err(), seen == Seen::Refused, "{named}: {made:?}");
        if seen == Seen::Restarts {
            let launches = before.launches + 1;
            until_host(&named, || rig.system.hypervisor().launches() == launches && boot().is_some()).await;
            web_runs(rig).await;
            let after = Witness::of(rig).await;
            assert_ne!((after.pid, after.boot), (before.pid, before.boot), "{named}");
            assert_eq!(after.volumes, before.volumes, "{named}");
            before = after;
            continue;
        }
        let pending = settled(rig).await;
        assert_eq!(Witness::of(rig).await, before, "{named}");
        match (seen, power) {
            (Seen::Waits, Power::Running | Power::Paused) => assert!(!pending.is_empty(), "{named}"),
            (Seen::Same, Power::Running) | (_, Power::Stopped) => {
                assert!(pending.is_empty(), "{named}: {pending:?}");
            }
            _ => {}
        }
    }
    rig.apply("VMClass", "small", class()).await;
    rig.apply("VM", "web", vm(Power::Running)).await;
    web_runs(rig).await;
    until_host("the guest runs", || boot().is_some()).await;
    let after = Witness::of(rig).await;
    match power {
        Power::Running => assert_eq!(after, before),
        Power::Paused => assert_eq!(after, booted),
        Power::Stopped => assert_ne!(after.boot, booted.boot),
        Power::Suspended => assert_eq!(after.boot, booted.boot, "the guest goes on where it was"),
    }
    assert_eq!(after.volumes, booted.volumes);
    rig.must_settle().await;
    rig.remove_secret("team").await;
    rig.remove_secret("login").await;
}

#[test]
fn each_change_of_a_vm_that_runs_has_the_effect_that_its_page_shows() {
    converges(&[], async |rig| each_change(rig, Power::Running).await);
}

#[test]
fn each_change_of_a_stopped_vm_has_the_effect_that_its_page_shows() {
    converges(&[], async |rig| each_change(rig, Power::Stopped).await);
}

#[test]
fn each_change_of_a_paused_vm_has_the_effect_that_its_page_shows() {
    converges(&[], async |rig| each_change(rig, Power::Paused).await);
}

#[test]
fn each_change_of_a_suspended_vm_has_the_effect_that_its_page_shows() {
    converges(&[], async |rig| each_change(rig, Power::Suspended).await);
}
