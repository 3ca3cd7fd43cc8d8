//! A running guest that moves between two hosts with a folder in common. On real sockets, and therefore in real time.

use berth_host::HostRange;

use super::image_copies::server;
use super::*;

/// Which boot of its operating system each guest of a host is in.
fn boots(system: &FakeSystem) -> Vec<Option<u64>> {
    let hypervisor = system.hypervisor();
    let views = hypervisor.instances().into_iter().filter_map(|instance| hypervisor.view(&instance));
    views.map(|view| view.boot).collect()
}

impl Fleet {
    /// Two hosts with a folder in common.
    async fn with_common_folder(&self) -> [Arc<FakeSystem>; 2] {
        let hosts = [image::host(&self.clock), image::host(&self.clock)];
        for (name, system) in ["h1", "h2"].into_iter().zip(&hosts) {
            system.set_pool_folder("site", None);
            self.join_with(name, "a", system, Some(server().await)).await;
            self.until("it is there", async || self.host_exists(name).await).await;
        }
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": "site"},
            "spec": {"type": "Shared"}});
        install::apply(&self.admin, &[pool]).await.expect("it applies");
        self.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        self.apply("Disk", "data", json!({"size": "1Gi", "pool": "site"})).await;
        hosts
    }

    /// Declares the VM `web` with a disk in that folder.
    async fn declare_live(&self, placement: Value, power: &str) {
        let spec = json!({"class": "small", "disks": [{"name": "data", "boot": true}], "networkInterfaces": [],
            "placement": placement, "power": power, "stop": {"gracePeriodSeconds": 5}});
        self.apply("VM", "web", spec).await;
    }
}

#[tokio::test]
async fn a_running_guest_moves_to_another_host_and_back_and_one_of_them_runs_it() {
    let fleet = Fleet::new().await;
    let [first, second] = fleet.with_common_folder().await;
    fleet.declare_live(json!({"host": "h1"}), "Running").await;
    fleet.until_vm("web", "runs", runs).await;
    fleet.until("it has booted", async || boots(&first).iter().any(Option::is_some)).await;
    let boot = boots(&first);
    for (host, there, left) in [("h2", &second, &first), ("h1", &first, &second)] {
        fleet.declare_live(json!({"host": host, "movePolicy": "Live"}), "Running").await;
        let is_there = |vm: &VM| host_of(vm) == host && runs(vm);
        let vm = fleet.until_vm("web", "runs on the other host", is_there).await;
        assert_eq!(boots(there), boot, "it was not booted anew");
        assert!(boots(left).is_empty(), "the other host does not have it any more");
        let status = vm.status.unwrap_or_default();
        assert_eq!((status.migration, status.restarts), (None, 0));
    }
    assert!(first.violations().is_empty(), "{:?}", first.violations());
    assert!(second.violations().is_empty(), "{:?}", second.violations());
}

#[tokio::test]
async fn a_guest_whose_other_host_cannot_start_its_qemu_runs_on_and_says_why() {
    let fleet = Fleet::new().await;
    let [first, second] = fleet.with_common_folder().await;
    fleet.declare_live(json!({"host": "h1"}), "Running").await;
    let vm = fleet.until_vm("web", "runs", runs).await;
    fleet.until("it has booted", async || boots(&first).iter().any(Option::is_some)).await;
    let boot = boots(&first);
    let instance = vm.status.and_then(|status| status.instance_id).expect("it has one");
    second.hypervisor().set_behaviour(&instance, |behaviour| {
        behaviour.fails_at_start = Some("no such machine".to_owned());
    });
    fleet.declare_live(json!({"host": "h2", "movePolicy": "Live"}), "Running").await;
    let says_why = |vm: &VM| {
        let migration = vm.status.as_ref().and_then(|status| status.migration.as_ref());
        migration.is_some_and(|migration| migration.message.contains("no such machine"))
    };
    let vm = fleet.until_vm("web", "says why", says_why).await;
    assert_eq!(host_of(&vm), "h1");
    assert_eq!((boots(&first), boots(&second)), (boot, Vec::new()), "it runs on");
}

#[tokio::test]
async fn a_guest_whose_other_host_refuses_its_network_runs_on_and_says_why() {
    let fleet = Fleet::new().await;
    let [first, second] = fleet.with_common_folder().await;
    let declare = async |placement: Value| {
        let spec = json!({"class": "small", "disks": [{"name": "data", "boot": true}],
            "networkInterfaces": [{"name": "nic0"}], "placement": placement, "stop": {"gracePeriodSeconds": 5}});
        fleet.apply("VM", "web", spec).await;
    };
    declare(json!({"host": "h1"})).await;
    let vm = fleet.until_vm("web", "runs", runs).await;
    fleet.until("it has booted", async || boots(&first).iter().any(Option::is_some)).await;
    let boot = boots(&first);
    let address = vm.status.and_then(|status| status.interfaces.first().map(|nic| nic.address.clone()));
    let range = format!("{}/32", address.expect("it has an interface")).parse().expect("a range");
    second.change_facts(|facts| facts.ranges = vec![HostRange { range, is_route: false }]);
    declare(json!({"host": "h2", "movePolicy": "Live"})).await;
    let says_why = |vm: &VM| {
        let migration = vm.status.as_ref().and_then(|status| status.migration.as_ref());
        migration.is_some_and(|migration| migration.message.contains("in use by this host itself"))
    };
    let vm = fleet.until_vm("web", "says why", says_why).await;
    assert_eq!(host_of(&vm), "h1");
    assert_eq!((boots(&first), boots(&second)), (boot, Vec::new()), "it runs on");
    assert!(second.violations().is_empty(), "{:?}", second.violations());
}
