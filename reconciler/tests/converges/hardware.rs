//! CPUs, memory, media, keys and devices of a VM, most of them changed while it runs.

use berth_api::VMState;
use berth_host::{PciDeviceFacts, ShareFacts, UsbDeviceFacts, VgpuFacts};
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, converges};
use crate::{until_host, web, web_is_declared, web_is_declared_with, web_runs};

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
        // An interruption sets a password once more.
        let password = || {
            let hypervisor = rig.system.hypervisor();
            let instance = hypervisor.instances().first().cloned().unwrap_or_default();
            let mut set = hypervisor.guest_passwords(&instance, "debian");
            set.dedup();
            set
        };
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.set_secret("team", "ssh-ed25519 BBBB b\n").await;
        rig.set_secret_value("login", "password", "$6$salt$first").await;
        let (debian, root) = (
            json!({"name": "debian", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"], "sshAuthorizedKeysSecret": "team", "passwordSecret": "login"}),
            json!({"name": "root", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"]}),
        );
        rig.apply("VM", "web", with(json!([debian, root]))).await;
        until_host("both have their keys", || keys("debian") == ["AAAA", "BBBB"] && keys("root") == ["AAAA"])
            .await;
        until_host("the user has the password", || password() == ["$6$salt$first"]).await;
        rig.set_secret_value("login", "password", "$6$salt$second").await;
        rig.set_secret("team", "ssh-ed25519 CCCC c\n").await;
        rig.apply("VM", "web", with(json!([debian]))).await;
        until_host("the keys are rotated", || keys("debian") == ["AAAA", "CCCC"] && keys("root").is_empty())
            .await;
        until_host("the password is rotated", || password() == ["$6$salt$first", "$6$salt$second"]).await;
        rig.until_vm("web", "says that its user is as declared", |vm| {
            let users = vm.status.iter().flat_map(|status| &status.guest_users);
            users.map(|user| (user.name.as_str(), user.synced)).eq([("debian", true)]) && rig::is_ready(vm)
        })
        .await;
        rig.must_settle().await;
        rig.remove_secret("team").await;
        rig.remove_secret("login").await;
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
