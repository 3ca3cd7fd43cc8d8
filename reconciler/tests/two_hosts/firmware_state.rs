//! The firmware variables and the TPM of a VM that moves between two hosts. On real sockets, and therefore in real time.

use super::image_copies::server;
use super::*;

impl Fleet {
    /// Declares the VM `sealed` with a TPM, and a disk of its host alone.
    async fn declare_sealed(&self, placement: Value, power: &str) {
        let spec = json!({"class": "sealed", "disks": [{"name": "sealed", "boot": true}], "networkInterfaces": [],
            "placement": placement, "power": power, "stop": {"mode": "Hard"}});
        self.apply("VM", "sealed", spec).await;
    }
}

#[tokio::test]
async fn a_vm_moves_with_its_firmware_variables_and_its_tpm_which_its_former_host_removes_after_that() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    let _second = fleet.join_with("h2", "a", &second, Some(server().await)).await;
    for host in ["h1", "h2"] {
        fleet.until("it is there", async || fleet.host_exists(host).await).await;
    }
    let class = json!({"cpus": 1, "memory": "512Mi", "firmware": "UEFI", "tpm": true});
    fleet.apply("VMClass", "sealed", class).await;
    fleet.apply("Disk", "sealed", json!({"size": "1Gi"})).await;
    fleet.declare_sealed(json!({"host": "h1"}), "Running").await;
    let vm = fleet.until_vm("sealed", "runs", runs).await;
    let instance = vm.status.and_then(|status| status.instance_id).expect("it has one");
    let state = first.firmware_now(&instance).expect("it has some");
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    for (host, has, former, had) in [("h2", &second, "h1", &first), ("h1", &first, "h2", &second)] {
        let placement = json!({"host": host, "movePolicy": "WhenStopped"});
        fleet.declare_sealed(placement.clone(), "Stopped").await;
        let is_there = |vm: &VM| host_of(vm) == host && vm.firmware_state_on().is_none();
        fleet.until_vm("sealed", "is bound to the next host, with its firmware state", is_there).await;
        assert_eq!(has.firmware_now(&instance).as_ref(), Some(&state));
        // It looks at what it has left once a minute, and when something of it changes.
        let patch = Patch::Merge(json!({"metadata": {"labels": {"looked-after": host}}}));
        hosts.patch(former, &PatchParams::default(), &patch).await.expect("it is there");
        let is_removed = async || had.firmware_now(&instance).is_none();
        fleet.until("the former host has removed it", is_removed).await;
        fleet.declare_sealed(placement, "Running").await;
        let vm = fleet.until_vm("sealed", "runs there", runs).await;
        assert_eq!(host_of(&vm), host);
        assert_eq!(has.firmware_now(&instance).as_ref(), Some(&state), "the guest has the same TPM");
    }
    assert!(first.violations().is_empty() && second.violations().is_empty());
}
