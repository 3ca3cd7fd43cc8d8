//! The core test: whatever fails or crashes on the way, the declared state is reached.
//!
//! The embedded control plane, the controllers and an agent on a fake host with a QEMU that speaks real QMP run in
//! one runtime with paused time. A scenario is run clean first, which counts its external calls (requests to the
//! control plane and calls to the host); then once for each call and each kind of fault at that call, of equal calls
//! for the first only, unless `BERTH_TEST_EVERY_CALL` is set. Each time the declared state must be reached, a further
//! reconcile must write nothing, and nothing may leak.

#[path = "converges/backups.rs"]
mod backups;
#[path = "converges/faults.rs"]
mod faults;
#[path = "shared/installed.rs"]
mod installed;
#[path = "converges/moves.rs"]
mod moves;
#[path = "converges/partitions.rs"]
mod partitions;
#[path = "converges/rig.rs"]
mod rig;
#[path = "shared/setup.rs"]
mod setup;
#[path = "converges/snapshot_schedules.rs"]
mod snapshot_schedules;
#[path = "converges/vm_groups.rs"]
mod vm_groups;
#[path = "converges/vm_snapshots.rs"]
mod vm_snapshots;

use std::{cell::RefCell, time::Duration};

use berth_api::{AttachmentState, Disk, HotswapDiskAttachment, Image, ImageState, PublicIP, VMState};
use berth_host::{BridgeChoice, HostInterface, PciDeviceFacts, ShareFacts, UsbDeviceFacts, VgpuFacts};
use faults::Fault;
use rig::{Rig, converges};
use serde_json::json;

/// A running VM with a root disk from an image and a public address.
async fn web_is_declared(rig: &Rig) {
    web_is_declared_with(rig, "Running").await;
}

async fn web_is_declared_with(rig: &Rig, power: &str) {
    prerequisites_are_declared(rig).await;
    rig.apply("PublicIP", "web", json!({})).await;
    rig.apply("VM", "web", web(power)).await;
}

async fn prerequisites_are_declared(rig: &Rig) {
    rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    rig.apply("Image", "debian", json!({"source": {"url": rig::IMAGE_URL, "sha256": rig::IMAGE_SHA256}}))
        .await;
    rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi"})).await;
}

fn web(power: &str) -> serde_json::Value {
    json!({
        "class": "small", "power": power,
        "disks": [{"name": "web-root", "boot": true}],
        "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
        "stop": {"mode": "Graceful", "gracePeriodSeconds": 5},
    })
}

async fn web_runs(rig: &Rig) {
    rig.until_vm("web", "runs and is ready", |vm| {
        rig::is_ready(vm) && rig::state(vm) == Some(VMState::Running)
    })
    .await;
    assert_eq!(rig.system.hypervisor().instances().len(), 1, "one VM, one QEMU");
}

async fn all_is_deleted(rig: &Rig) {
    for (kind, name) in [
        ("HotswapDiskAttachment", "web-data"),
        ("VM", "web"),
        ("Disk", "web-root"),
        ("Disk", "web-data"),
        ("PublicIP", "web"),
        ("Image", "debian"),
        ("VMClass", "small"),
    ] {
        rig.delete(kind, name).await;
    }
    rig.until_nothing_is_left().await;
}

/// The longest scenario; one test per fault, so that they run in parallel.
fn a_vm_is_created_and_deleted(fault: Fault) {
    converges(&[fault], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_vm_is_created_and_deleted_whatever_call_fails() {
    a_vm_is_created_and_deleted(Fault::Error);
}

#[test]
fn a_vm_is_created_and_deleted_whatever_answer_is_lost() {
    a_vm_is_created_and_deleted(Fault::LostAnswer);
}

#[test]
fn a_vm_is_created_and_deleted_wherever_berth_crashes_after_an_effect() {
    a_vm_is_created_and_deleted(Fault::CrashAfter);
}

#[test]
fn a_vm_is_created_and_deleted_through_a_partition() {
    a_vm_is_created_and_deleted(Fault::Partition);
}

#[test]
fn a_vm_is_created_and_deleted_on_stale_knowledge() {
    a_vm_is_created_and_deleted(Fault::StaleWatches);
}

#[test]
fn a_vm_is_created_and_deleted_while_the_disk_is_full() {
    a_vm_is_created_and_deleted(Fault::FullDisk);
}

fn rules(names: &[&str]) -> serde_json::Value {
    let rule =
        |name: &&str| json!({"name": name, "protocol": "tcp", "ports": ["22"], "securityGroups": ["web"]});
    json!({"ingress": names.iter().map(rule).collect::<Vec<_>>(), "egress": []})
}

#[test]
fn a_vm_with_a_security_group_never_has_an_open_filter_and_follows_its_rules_and_members() {
    converges(&[Fault::CrashAfter], async |rig| {
        rig.system.expect_filters();
        let mut spec = web("Running");
        spec["networkInterfaces"][0]["securityGroups"] = json!(["web", "more"]);
        web_is_declared_with(rig, "Stopped").await;
        rig.apply("SecurityGroup", "web", rules(&["ssh"])).await;
        rig.apply("SecurityGroup", "more", rules(&["ssh"])).await;
        rig.apply("VM", "web", spec).await;
        web_runs(rig).await;
        let own = || rig.system.filters().ports.first().map(|filtered| filtered.port.address);
        let members = || rig.system.filters().sets.get("default/web").cloned();
        until_host("its own address is in the set of its group", || {
            own().flatten().is_some_and(|address| members() == Some(vec![(address, address)]))
        })
        .await;
        rig.strike_from_here();
        rig.apply("SecurityGroup", "web", rules(&["ssh", "more"])).await;
        let ingress = || {
            let filters = rig.system.filters();
            let group = filters.groups.iter().find(|group| group.name == "default/web");
            group.map(|group| (group.ingress.len(), group.egress.as_ref().map(Vec::len)))
        };
        until_host("the new rule is in force", || ingress() == Some((2, Some(0)))).await;
        rig.delete("SecurityGroup", "more").await;
        spec_without_more(rig).await;
        until_host("the VM has one group left", || {
            rig.system.filters().ports.iter().all(|port| port.groups == ["default/web"])
        })
        .await;
        let before = rig.system.filters();
        rig.system.lose_firewall();
        until_host("removed rules are there again", || rig.system.filters() == before).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
        rig.delete("SecurityGroup", "web").await;
        rig.until_nothing_is_left().await;
    });
}

async fn until_host(what: &str, holds: impl Fn() -> bool) {
    let begun = tokio::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 900, "not reached: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn spec_without_more(rig: &Rig) {
    let mut spec = web("Running");
    spec["networkInterfaces"][0]["securityGroups"] = json!(["web"]);
    rig.apply("VM", "web", spec).await;
}

#[test]
fn a_vm_is_stopped_and_started_again() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped)
        })
        .await;
        assert!(rig.system.hypervisor().instances().is_empty(), "a stopped VM has no QEMU");
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_is_created_paused_and_resumed_and_paused_again_in_one_process() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let pauses = async || {
            rig.until_vm("web", "is paused and ready", |vm| {
                rig::is_ready(vm) && rig::state(vm) == Some(VMState::Paused)
            })
            .await;
        };
        web_is_declared_with(rig, "Paused").await;
        rig.strike_from_here();
        pauses().await;
        let pid = rig.pid("web").await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.apply("VM", "web", web("Paused")).await;
        pauses().await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_is_suspended_and_goes_on_in_another_process() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let instance = rig.system.hypervisor().instances().remove(0);
        let boot = || rig.system.hypervisor().view(&instance).and_then(|view| view.boot);
        rig.until_vm("web", "has booted", |_| boot().is_some()).await;
        let before = boot();
        rig.strike_from_here();
        rig.apply("VM", "web", web("Suspended")).await;
        rig.until_vm("web", "is suspended and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Suspended)
        })
        .await;
        assert!(rig.system.hypervisor().instances().is_empty(), "a suspended VM has no QEMU");
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        assert!(rig.system.saved_states_now().is_empty(), "a state is used once");
        assert_eq!(boot(), before, "the guest did not boot again");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_gets_cpus_and_memory_while_it_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let small = async |cpus: i64, memory: &str| {
            let spec = json!({"cpus": cpus, "memory": memory, "maxCpus": 3, "maxMemory": "2Gi", "firmware": "BIOS", "cpuWeight": 10 * cpus});
            rig.apply("VMClass", "small", spec).await;
        };
        web_is_declared_with(rig, "Stopped").await;
        small(1, "512Mi").await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        for (cpus, memory) in [(2, "1Gi"), (3, "2Gi"), (3, "1Gi")] {
            small(cpus, memory).await;
            rig.until_vm("web", "has what its class has", |vm| {
                let status = vm.status.clone().unwrap_or_default();
                let has = status.hardware.map(|hardware| (hardware.cpus, hardware.memory));
                has == Some((cpus, memory.to_owned()))
                    && status.cpu_time.is_some_and(|time| time.weight == 10 * cpus)
                    && status.pending_power_cycle.is_empty()
                    && rig::is_ready(vm)
            })
            .await;
        }
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_in_huge_pages_on_dedicated_cpus_runs_once_its_host_has_them() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let fast = json!({"cpus": 2, "memory": "512Mi", "firmware": "BIOS", "hugePages": "2Mi", "dedicatedCpuPlacement": true, "numaNodes": 2});
        rig.apply("VMClass", "small", fast).await;
        let image = json!({"source": {"url": rig::IMAGE_URL, "sha256": rig::IMAGE_SHA256}});
        rig.apply("Image", "debian", image).await;
        rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi"})).await;
        rig.apply("PublicIP", "web", json!({})).await;
        rig.apply("VM", "web", web("Running")).await;
        rig.until_vm("web", "waits for a host with CPUs for it", |vm| {
            let conditions = vm.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            berth_api::condition::find(conditions, "Scheduled").is_some_and(|c| {
                c.reason == "NoHostWithDedicatedCPUs" && c.message.contains("--dedicated-cpus")
            })
        })
        .await;
        rig.system.change_facts(|facts| {
            facts.dedicated.cpus = [4, 5, 6].into();
            facts.huge_pages =
                vec![berth_host::HugePagesFacts { page_bytes: 2 << 20, total: 256, free: 256 }];
        });
        web_runs(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.strike_from_here();
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.until_vm("web", "has two CPUs for itself", |vm| {
            let cpus = vm.status.as_ref().and_then(|s| s.dedicated_cpus.as_ref());
            let nodes = cpus.into_iter().flat_map(|cpus| &cpus.guest_nodes);
            let by_node: Vec<&[i64]> = nodes.map(|node| node.cpus.as_slice()).collect();
            cpus.is_some_and(|cpus| cpus.cpus == [4, 5] && cpus.emulator_thread.is_none())
                && by_node == [[4], [5]]
        })
        .await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "gives them back", |vm| {
            let is_stopped = rig::state(vm) == Some(VMState::Stopped);
            is_stopped && vm.status.as_ref().is_some_and(|s| s.dedicated_cpus.is_none())
        })
        .await;
        rig.must_settle().await;
    });
}

#[test]
fn a_medium_is_exchanged_and_taken_out_while_the_vm_with_a_tpm_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |drive: serde_json::Value| {
            let mut spec = web("Running");
            spec["tpm"] = json!(true);
            spec["cdroms"] = json!([drive]);
            spec
        };
        let media = || {
            let hypervisor = rig.system.hypervisor();
            let nodes = hypervisor.instances().first().and_then(|web| hypervisor.view(web));
            let nodes = nodes.map(|view| view.nodes).unwrap_or_default();
            nodes.into_iter().filter(|node| node.starts_with("cdrom")).collect::<Vec<_>>()
        };
        web_is_declared_with(rig, "Stopped").await;
        for digit in ["c", "d"] {
            let source = json!({"url": rig::iso_url(digit), "sha256": digit.repeat(64)});
            rig.apply("Image", &format!("iso-{digit}"), json!({"source": source, "format": "iso"})).await;
        }
        rig.apply("VM", "web", with(json!({"name": "a", "image": "iso-c"}))).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        assert_eq!(media(), ["cdrom0-cccccccccccccccccccc"]);
        rig.strike_from_here();
        for (drive, wanted) in [
            (json!({"name": "a", "image": "iso-d"}), vec!["cdrom0-dddddddddddddddddddd"]),
            (json!({"name": "a"}), Vec::new()),
        ] {
            rig.apply("VM", "web", with(drive)).await;
            rig.until_vm("web", "has the medium", |vm| rig::is_ready(vm) && media() == wanted).await;
        }
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

#[test]
fn the_ssh_keys_of_a_running_guest_follow_the_vm_and_its_secret() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |users: serde_json::Value| {
            let mut spec = web("Running");
            spec["guestUsers"] = users;
            spec
        };
        let keys = |user: &str| {
            let hypervisor = rig.system.hypervisor();
            let instance = hypervisor.instances().first().cloned().unwrap_or_default();
            let keys = hypervisor.authorized_keys(&instance, user);
            keys.iter().filter_map(|key| key.split(' ').nth(1).map(str::to_owned)).collect::<Vec<_>>()
        };
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.set_secret("team", "ssh-ed25519 BBBB b\n").await;
        let (debian, root) = (
            json!({"name": "debian", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"], "sshAuthorizedKeysSecret": "team"}),
            json!({"name": "root", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"]}),
        );
        rig.apply("VM", "web", with(json!([debian, root]))).await;
        until_host("both have their keys", || keys("debian") == ["AAAA", "BBBB"] && keys("root") == ["AAAA"])
            .await;
        rig.set_secret("team", "ssh-ed25519 CCCC c\n").await;
        rig.apply("VM", "web", with(json!([debian]))).await;
        until_host("the keys are rotated", || keys("debian") == ["AAAA", "CCCC"] && keys("root").is_empty())
            .await;
        rig.until_vm("web", "says that its user is as declared", |vm| {
            let users = vm.status.iter().flat_map(|status| &status.guest_users);
            users.map(|user| (user.name.as_str(), user.synced)).eq([("debian", true)]) && rig::is_ready(vm)
        })
        .await;
        rig.must_settle().await;
        rig.remove_secret("team").await;
    });
}

#[test]
fn a_network_interface_is_plugged_in_and_out_while_the_vm_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |interfaces: serde_json::Value| {
            let mut spec = web("Running");
            spec["networkInterfaces"] = interfaces;
            spec
        };
        let cards = || {
            let hypervisor = rig.system.hypervisor();
            let view = hypervisor.instances().first().and_then(|web| hypervisor.view(web));
            let view = view.expect("it runs");
            assert_eq!(view.nics.len(), view.taps.len(), "a tap without a card: {view:?}");
            view.nics.into_values().map(|nic| (nic.mac, nic.is_up)).collect::<Vec<_>>()
        };
        let settled = async |wanted: &[(&str, bool)]| {
            rig.until_vm("web", "has its cards", |vm| {
                let given = vm.status.iter().flat_map(|status| &status.interfaces);
                let mac = |name: &str| given.clone().find(|i| i.name == name).map(|i| i.mac_address.clone());
                let expected: Vec<_> =
                    wanted.iter().filter_map(|(name, up)| Some((mac(name)?, *up))).collect();
                let pending = vm.status.as_ref().is_some_and(|status| !status.pending_power_cycle.is_empty());
                let is_there = expected.len() == wanted.len() && given.clone().count() == wanted.len();
                is_there && rig::is_ready(vm) && !pending && cards() == expected
            })
            .await;
        };
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        let first = json!({"name": "nic0", "publicIP": "web"});
        rig.strike_from_here();
        rig.apply("VM", "web", with(json!([first, {"name": "lan", "link": "Down"}]))).await;
        settled(&[("nic0", true), ("lan", false)]).await;
        rig.apply("VM", "web", with(json!([{"name": "lan"}, first]))).await;
        settled(&[("nic0", true), ("lan", true)]).await;
        rig.apply("VM", "web", with(json!([first]))).await;
        settled(&[("nic0", true)]).await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        assert_eq!(rig.system.taps_now().len(), 1, "its tap is gone");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_on_a_vlan_of_an_interface_is_connected_while_it_runs_and_nothing_is_left_of_the_bridge() {
    converges(&[Fault::CrashAfter], async |rig| {
        let eth1 =
            HostInterface { name: "eth1".into(), mtu: 1500, up: true, carrier: true, ..Default::default() };
        rig.system.change_interfaces(&[eth1]);
        rig.system.change_facts(|facts| facts.links.vlans = true);
        rig.apply_shared(
            "Network",
            "lan",
            json!({"type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120},
            "cidr": "192.0.2.0/24", "ipv4": {"range": "192.0.2.50-192.0.2.59"}}),
        )
        .await;
        prerequisites_are_declared(rig).await;
        let mut spec = web("Running");
        spec["networkInterfaces"] = json!([{"name": "lan", "network": "lan"}]);
        rig.strike_from_here();
        rig.apply("VM", "web", spec).await;
        web_runs(rig).await;
        let over = BridgeChoice::Over { interface: "eth1".into(), vlan: Some(120) };
        let parts = rig.system.bridged_networks();
        assert_eq!(parts.iter().map(|part| &part.to).collect::<Vec<_>>(), [&over]);
        rig.must_settle().await;
        rig.delete("VM", "web").await;
        until_host("nothing is connected any more", || rig.system.bridged_networks().is_empty()).await;
    });
}

#[test]
fn a_vm_has_devices_of_its_host_while_it_runs_and_gives_them_back() {
    let gpu = |number: u32| PciDeviceFacts {
        name: "gpu".to_owned(),
        address: format!("0000:0{number}:00.0"),
        id: Some("10de:20b0".to_owned()),
        functions: vec![format!("0000:0{number}:00.0"), format!("0000:0{number}:00.1")],
        groups: vec![number],
        ..PciDeviceFacts::default()
    };
    let key = UsbDeviceFacts {
        name: "key".to_owned(),
        port: "1-2".to_owned(),
        id: Some("0403:6001".to_owned()),
        bus: 1,
        number: 4,
        ..UsbDeviceFacts::default()
    };
    let vgpus = |number: u32| VgpuFacts {
        name: "a40-8q".to_owned(),
        parent: format!("0000:{number}1:00.0"),
        mdev_type: "nvidia-558".to_owned(),
        usable: 1,
        ..VgpuFacts::default()
    };
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |power: &str, count: i64| {
            let mut spec = web(power);
            spec["pciDevices"] = json!([{"name": "gpu", "count": count}]);
            spec["usbDevices"] = json!([{"name": "key"}]);
            spec["vgpus"] = json!([{"name": "a40-8q", "count": count}]);
            spec
        };
        let held = || {
            let mut held = 0;
            rig.system.change_facts(|facts| {
                let pci = facts.pci_devices.iter().map(|device| &device.held_by);
                let usb = facts.usb_devices.iter().map(|device| &device.held_by);
                let vgpus = facts.vgpus.iter().flat_map(|vgpus| vgpus.held_by.values());
                held = pci.chain(usb).flatten().chain(vgpus).count();
            });
            held
        };
        rig.system.change_facts(|facts| {
            facts.pci_devices = vec![gpu(1), gpu(2)];
            facts.usb_devices = vec![key.clone()];
            facts.vgpus = vec![vgpus(4), vgpus(6)];
        });
        web_is_declared_with(rig, "Stopped").await;
        rig.strike_from_here();
        rig.apply("VM", "web", with("Running", 2)).await;
        web_runs(rig).await;
        assert_eq!(held(), 5);
        rig.apply("VM", "web", with("Stopped", 1)).await;
        rig.until_vm("web", "is stopped and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped) && held() == 0
        })
        .await;
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_mounts_folders_of_its_host_and_waits_for_one_that_is_not_shared() {
    let share = |name: &str, read_only| ShareFacts { name: name.to_owned(), read_only, problem: None };
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |power: &str, names: &[&str]| {
            let mut spec = web(power);
            let shares: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            spec["shares"] = json!(shares);
            spec
        };
        rig.system.change_facts(|facts| facts.shares = vec![share("data", false)]);
        web_is_declared_with(rig, "Stopped").await;
        rig.strike_from_here();
        rig.apply("VM", "web", with("Running", &["data", "work"])).await;
        rig.until_vm("web", "has no host with all its shares", |vm| {
            let conditions = vm.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            let reasons = ["NoHostWithShare", "ShareUnavailable"];
            conditions.iter().any(|condition| reasons.contains(&condition.reason.as_str()))
        })
        .await;
        rig.system.change_facts(|facts| facts.shares = vec![share("data", false), share("work", false)]);
        web_runs(rig).await;
        rig.apply("VM", "web", with("Stopped", &[])).await;
        rig.until_vm("web", "is stopped and ready", |vm| {
            rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped)
        })
        .await;
        rig.must_settle().await;
    });
}

#[test]
fn a_disk_is_attached_grown_and_detached_while_the_vm_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        let disk =
            |size: &str, iops: u64| json!({"size": size, "provisioning": "Thick", "limits": {"iops": iops}});
        let iops = || {
            let hypervisor = rig.system.hypervisor();
            let web = hypervisor.instances().first().and_then(|web| hypervisor.view(web));
            web.map(|web| web.iops.into_values().collect::<Vec<_>>()).unwrap_or_default()
        };
        let reserved = || {
            let volumes = rig.system.volume_facts_now();
            volumes.iter().filter_map(|volume| volume.reserved).collect::<Vec<_>>()
        };
        rig.apply("Disk", "web-data", disk("1Gi", 100)).await;
        rig.apply("HotswapDiskAttachment", "web-data", json!({"vm": "web", "disk": "web-data"})).await;
        let attached = |a: &HotswapDiskAttachment| {
            a.status
                .as_ref()
                .is_some_and(|s| s.state == Some(AttachmentState::Attached) && s.serial.is_some())
        };
        rig.until("web-data", "is attached", attached).await;
        let limited = |d: &Disk| rig::is_disk_ready(d) && iops() == [100] && reserved() == [1 << 30];
        rig.until("web-data", "has its ceiling", limited).await;
        rig.apply("Disk", "web-data", disk("2Gi", 200)).await;
        let grown = |d: &Disk| d.status.as_ref().and_then(|s| s.size.clone()).as_deref() == Some("2Gi");
        let grown =
            |d: &Disk| grown(d) && rig::is_disk_ready(d) && iops() == [200] && reserved() == [2 << 30];
        rig.until("web-data", "has grown", grown).await;
        rig.delete("HotswapDiskAttachment", "web-data").await;
        rig.until_gone("HotswapDiskAttachment", "web-data").await;
        rig.until("web-data", "is free", |d: &Disk| d.status.as_ref().is_some_and(|s| s.used_by.is_empty()))
            .await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

fn is_away(disk: &Disk) -> bool {
    let conditions = disk.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    berth_api::condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "PoolAway")
}

#[test]
fn a_disk_of_a_pool_that_is_away_is_out_of_reach_and_is_deleted_once_the_pool_is_back() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.system.set_pool_folder("default", None);
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.system.set_pool_folder("default", Some("its file system is not mounted"));
        rig.until("web-root", "is out of reach", is_away).await;
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        rig.delete("Disk", "web-root").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(rig.system.volumes_now().len(), 1, "the file stays");
        rig.until("web-root", "is still out of reach", is_away).await;
        rig.system.set_pool_folder("default", None);
        rig.until_gone("Disk", "web-root").await;
        for (kind, name) in [("PublicIP", "web"), ("Image", "debian"), ("VMClass", "small")] {
            rig.delete(kind, name).await;
        }
        rig.until_nothing_is_left().await;
    });
}

fn has_file(disk: &Disk) -> bool {
    rig::is_disk_ready(disk) && disk.status.as_ref().is_some_and(|s| s.size.as_deref() == Some("4Gi"))
}

/// A snapshot of the running VM's disk, a copy of it, and a copy of the disk itself.
async fn snapshot_and_copies_are_declared(rig: &Rig) {
    rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
    rig.apply("Disk", "copy", json!({"source": {"snapshot": "before"}})).await;
    rig.apply("Disk", "twin", json!({"source": {"disk": "web-root"}})).await;
}

async fn snapshot_and_copies_are_there(rig: &Rig) {
    rig.until("before", "is taken", rig::is_taken).await;
    for copy in ["copy", "twin"] {
        rig.until(copy, "has a file", has_file).await;
    }
}

#[test]
fn a_file_of_the_host_becomes_the_disk_of_a_vm() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        rig.apply("Disk", "taken", json!({"source": {"file": "/srv/taken.qcow2"}})).await;
        let vm =
            json!({"class": "small", "disks": [{"name": "taken", "boot": true}], "networkInterfaces": []});
        rig.apply("VM", "old", vm).await;
        rig.until("taken", "waits for its file", |disk: &Disk| {
            berth_api::condition::find(&disk.status.clone().unwrap_or_default().conditions, "Ready")
                .is_some_and(|ready| ready.reason == "WaitingForFile")
        })
        .await;
        rig.strike_from_here();
        rig.system.put_file("/srv/taken.qcow2", 4 << 30);
        rig.until("taken", "has a file", has_file).await;
        rig.until_vm("old", "runs", |vm| rig::state(vm) == Some(VMState::Running)).await;
        rig.must_settle().await;
        for (kind, name) in [("VM", "old"), ("Disk", "taken"), ("VMClass", "small")] {
            rig.delete(kind, name).await;
        }
        rig.until_nothing_is_left().await;
    });
}

#[test]
fn a_disk_of_a_running_vm_has_a_snapshot_taken_and_is_copied() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        snapshot_and_copies_are_declared(rig).await;
        snapshot_and_copies_are_there(rig).await;
        let hypervisor = rig.system.hypervisor();
        let view = hypervisor.view(&hypervisor.instances()[0]).expect("it runs");
        assert!(!view.is_frozen, "the guest goes on");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        let taken = rig.system.snapshots_now();
        assert_eq!(taken.iter().filter(|snapshot| snapshot.taken.is_some()).count(), 2, "{taken:?}");
        assert_eq!(rig.system.volumes_now().len(), 3, "the disk and its copies");
    });
}

#[test]
fn a_snapshot_and_its_copies_are_deleted_and_the_file_goes_with_the_last_that_is_based_on_it() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        snapshot_and_copies_are_declared(rig).await;
        snapshot_and_copies_are_there(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.delete("DiskSnapshot", "before").await;
        rig.until_gone("DiskSnapshot", "before").await;
        rig.delete("Disk", "copy").await;
        rig.until_gone("Disk", "copy").await;
        assert_eq!(rig.system.volumes_now().len(), 2, "the disk and its copy");
        rig.delete("Disk", "twin").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn the_file_of_a_deleted_snapshot_is_merged_and_a_running_vm_closes_it() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        for name in ["first", "second"] {
            rig.apply("DiskSnapshot", name, json!({"disk": "web-root"})).await;
            rig.until(name, "is taken", rig::is_taken).await;
        }
        let hypervisor = rig.system.hypervisor();
        let below = || {
            let view = hypervisor.view(&hypervisor.instances()[0]).expect("it runs");
            view.below.values().map(Vec::len).max()
        };
        assert_eq!(below(), Some(3), "two snapshots and the image");
        rig.strike_from_here();
        rig.delete("DiskSnapshot", "first").await;
        rig.until_gone("DiskSnapshot", "first").await;
        until_host("the machine has its file open no more", || below() == Some(2)).await;
        assert_eq!(rig.system.snapshots_now().len(), 1, "one file is left");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        assert_eq!(rig.system.volumes_now().len(), 1);
    });
}

#[test]
fn a_snapshot_that_is_deleted_without_its_finalizer_leaves_nothing() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.delete_by_force("DiskSnapshot", "before").await;
        let unowned = || rig.system.snapshots_now().iter().all(|snapshot| snapshot.owner.is_none());
        until_host("the snapshot is its disk's only", unowned).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_snapshot_is_of_the_same_moment_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        let moment = || {
            let found = rig.system.snapshots_now();
            found.into_iter().map(|snapshot| (snapshot.id, snapshot.taken)).collect::<Vec<_>>()
        };
        let before = moment();
        assert_eq!(before.len(), 1);
        rig.lose_every_status().await;
        web_runs(rig).await;
        rig.until("before", "is known again", rig::is_taken).await;
        assert_eq!(moment(), before);
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        rig.until("before", "is taken over", rig::is_taken).await;
        assert_eq!(moment(), before);
        rig.must_settle().await;
        rig.delete("DiskSnapshot", "before").await;
        all_is_deleted(rig).await;
    });
}

fn is_image_ready(image: &Image) -> bool {
    image.status.as_ref().is_some_and(|status| status.state == Some(ImageState::Ready))
}

async fn images_of_disk_and_snapshot_are_there(rig: &Rig) {
    rig.apply("Image", "golden", json!({"source": {"snapshot": "before"}})).await;
    rig.apply("Image", "current", json!({"source": {"disk": "web-root"}})).await;
    rig.apply("Disk", "copy", json!({"image": "golden"})).await;
    for image in ["golden", "current"] {
        rig.until(image, "is made", is_image_ready).await;
    }
}

#[test]
fn an_image_is_made_from_a_disk_and_from_a_snapshot_once() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.strike_from_here();
        images_of_disk_and_snapshot_are_there(rig).await;
        assert_eq!(rig.pid("web").await, pid, "its VM runs on");
        assert_eq!(rig.system.leftovers().images.len(), 3, "the image below the disk, and one of each");
    });
}

#[test]
fn an_image_with_another_token_is_made_anew_and_a_disk_of_its_former_content_keeps_that() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("Image", "current", json!({"source": {"disk": "web-root"}})).await;
        rig.until("current", "is made", is_image_ready).await;
        rig.apply("Disk", "copy", json!({"image": "current"})).await;
        let has_file = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.size.is_some());
        rig.until("copy", "has a file", has_file).await;
        rig.strike_from_here();
        rig.apply("Image", "current", json!({"source": {"disk": "web-root", "token": "2"}})).await;
        let is_anew = |image: &Image| {
            let token = image.status.as_ref().and_then(|status| status.token.as_deref());
            is_image_ready(image) && token == Some("2") && image.digest().is_some()
        };
        rig.until("current", "is made anew", is_anew).await;
        rig.must_settle().await;
        assert_eq!(
            rig.system.leftovers().images.len(),
            3,
            "the image below the disk, the former content and the new one"
        );
    });
}

#[test]
fn images_that_were_made_go_with_their_objects_and_their_disks() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        images_of_disk_and_snapshot_are_there(rig).await;
        rig.must_settle().await;
        rig.delete("Disk", "copy").await;
        for (kind, name) in [("Image", "golden"), ("Image", "current"), ("DiskSnapshot", "before")] {
            rig.delete(kind, name).await;
            rig.until_gone(kind, name).await;
        }
        all_is_deleted(rig).await;
    });
}

#[test]
fn an_image_that_was_made_is_the_same_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        images_of_disk_and_snapshot_are_there(rig).await;
        let images = || rig.system.leftovers().images;
        let before = images();
        rig.lose_every_status().await;
        rig.until("golden", "is known again", is_image_ready).await;
        rig.until("current", "is known again", is_image_ready).await;
        assert_eq!(images(), before);
        rig.must_settle().await;
    });
}

/// The bytes of an image for the fake host, and their SHA-256.
const PUSHED: (&[u8], &str) =
    (b"QFI\xfb", "aea9800e5252b7172c533c82ffd26e6a670c060332a5c9aec024e37951772b53");

/// Declares an image that is uploaded, and uploads it. The host has no server for uploads: real sockets let paused time jump.
async fn image_is_uploaded(rig: &Rig) {
    let (bytes, sha256) = PUSHED;
    rig.apply("Image", "pushed", json!({"source": {"upload": {"size": bytes.len()}, "sha256": sha256}}))
        .await;
    let uid = RefCell::default();
    let is_awaited = |image: &Image| {
        uid.replace(image.metadata.uid.clone().unwrap_or_default());
        let conditions = image.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        berth_api::condition::find(&conditions, "Ready")
            .is_some_and(|ready| ready.reason == "ImageNotAllowed")
    };
    rig.until("pushed", "is awaited", is_awaited).await;
    rig.system.put_upload(&uid.take(), bytes);
    // The agent that crashed after the last byte of an upload verifies it when it starts again.
    rig.restart().await;
    rig.until("pushed", "is verified", is_image_ready).await;
}

#[test]
fn an_uploaded_image_is_verified_after_any_crash() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        image_is_uploaded(rig).await;
        assert_eq!((rig.system.leftovers().images.len(), rig.system.uploads_now()), (1, 0));
    });
}

#[test]
fn a_disk_of_an_uploaded_image_is_bound_where_it_is_and_both_go() {
    converges(&[], async |rig| {
        image_is_uploaded(rig).await;
        rig.apply("Disk", "copy", json!({"image": "pushed"})).await;
        let is_made = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.binding.is_some());
        rig.until("copy", "is bound where the image is", is_made).await;
        assert_eq!(rig.system.leftovers().images, [PUSHED.1]);
        rig.delete("Disk", "copy").await;
        rig.until_gone("Disk", "copy").await;
        rig.delete("Image", "pushed").await;
        rig.until_gone("Image", "pushed").await;
    });
}

#[test]
fn an_uploaded_image_is_the_same_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        image_is_uploaded(rig).await;
        rig.lose_every_status().await;
        rig.until("pushed", "is known again", is_image_ready).await;
        rig.make_everything_anew(true).await;
        rig.until("pushed", "is taken over", is_image_ready).await;
        assert_eq!(rig.system.leftovers().images, [PUSHED.1]);
        rig.must_settle().await;
    });
}

fn restore_of(disk: &Disk) -> Option<String> {
    let status = disk.status.as_ref()?;
    Some(status.restored_from.as_ref()?.snapshot.to_string())
}

fn is_restored(disk: &Disk) -> bool {
    rig::is_disk_ready(disk) && restore_of(disk).as_deref() == Some("before")
}

async fn restore_is_declared(rig: &Rig) {
    let restore = json!({"image": "debian", "size": "4Gi", "restore": {"snapshot": "before"}});
    rig.apply("Disk", "web-root", restore).await;
}

#[test]
fn a_disk_is_restored_in_place_while_its_vm_is_stopped() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.strike_from_here();
        restore_is_declared(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until("web-root", "is restored", is_restored).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        let restores: Vec<usize> =
            rig.system.volume_facts_now().iter().map(|volume| volume.restores.len()).collect();
        assert_eq!(restores, [1], "one volume, restored once");
    });
}

#[test]
fn a_restore_is_not_done_again_when_its_status_was_lost_or_its_disk_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.apply("VM", "web", web("Stopped")).await;
        restore_is_declared(rig).await;
        rig.until("web-root", "is restored", is_restored).await;
        let files =
            || rig.system.volume_facts_now().into_iter().map(|volume| volume.path).collect::<Vec<_>>();
        let restored = files();
        rig.lose_every_status().await;
        rig.until("web-root", "is known again", is_restored).await;
        rig.make_everything_anew(true).await;
        rig.until("web-root", "is taken over", is_restored).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
        assert_eq!(files(), restored);
        rig.delete("DiskSnapshot", "before").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn an_agent_that_starts_again_takes_up_what_runs() {
    converges(&[Fault::Error, Fault::CrashAfter, Fault::Partition, Fault::StaleWatches], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        rig.restart().await;
        web_runs(rig).await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU");
        rig.must_settle().await;
    });
}

#[test]
fn what_runs_and_what_lies_on_a_host_is_found_again_when_every_status_was_lost() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.strike_from_here();
        rig.lose_every_status().await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before, "the same QEMU, disk and addresses, nothing made twice");
        rig.must_settle().await;
        assert!(!rig.is_recovering().await, "the recovery closes by itself");
        rig.delete("PublicIP", "z-other").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn what_lost_its_status_and_runs_on_a_host_waits_for_an_administrator_and_is_not_made_twice() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.lose_every_status_unnoticed().await;
        rig.until_vm("web", "waits for a recovery", |vm| {
            let conditions = vm.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            berth_api::condition::find(conditions, "Stalled")
                .is_some_and(|c| c.message.contains("berth host recover h1"))
        })
        .await;
        assert_eq!(rig.system.hypervisor().instances().len(), 1, "nothing is started beside it");
        assert_eq!(rig.system.volumes_now(), before.2, "no disk is made");
        rig.open_recovery().await;
        web_runs(rig).await;
        let after = what_web_is(rig).await;
        assert_eq!((after.0, after.2), (before.0, before.2), "the same QEMU and disk");
    });
}

/// Declares another public address first, so that a new allocation for `web` would be lower than its own address.
async fn web_is_declared_second(rig: &Rig) {
    rig.apply("PublicIP", "z-other", json!({})).await;
    let has_one = |ip: &PublicIP| ip.status.as_ref().is_some_and(|s| s.address.is_some());
    rig.until("z-other", "has an address", has_one).await;
    web_is_declared(rig).await;
    web_runs(rig).await;
}

type Web = (Option<i64>, Vec<Option<String>>, std::collections::BTreeMap<String, u64>, berth_host::Firewall);

async fn what_web_is(rig: &Rig) -> Web {
    (rig.pid("web").await, rig.identity("web").await, rig.system.volumes_now(), rig.system.firewall_now())
}

#[test]
fn what_runs_and_lies_on_a_host_is_taken_up_by_objects_made_anew_that_say_which_they_were() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.strike_from_here();
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before, "the same QEMU, disk and addresses, nothing made twice");
        rig.must_settle().await;
        rig.delete("PublicIP", "z-other").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn what_was_taken_up_under_another_uid_is_that_ones_from_then_on() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        rig.must_settle().await;
        rig.forget_former_uids().await;
        rig.lose_every_status().await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before);
    });
}

#[test]
fn an_object_of_the_same_name_that_does_not_say_that_it_was_another_is_not() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.make_everything_anew(false).await;
        rig.until_vm("web", "runs and is ready", rig::is_ready).await;
        let after = what_web_is(rig).await;
        let all = before.1.iter().zip(&after.1).skip(1);
        assert!(all.into_iter().all(|(before, after)| before != after), "{before:?} {after:?}");
        assert_ne!(after.0, before.0);
        assert_eq!(rig.system.hypervisor().instances().len(), 2, "the guest that was there runs on");
        assert!(before.2.keys().all(|volume| after.2.contains_key(volume)), "with its disk");
    });
}
