//! Disks of a VM that moves between two hosts, each of which has the pool for itself. On real sockets, and therefore in real time.

use berth_api::DiskStatus;
use berth_host::Volumes;

use super::image_copies::server;
use super::*;

impl Fleet {
    async fn disk_status(&self, name: &str) -> DiskStatus {
        let disks: Api<Disk> = Api::default_namespaced(self.admin.clone());
        disks.get(name).await.expect("it is there").status.unwrap_or_default()
    }

    /// Declares the VM `web` with a disk of its host alone.
    async fn declare_mover(&self, placement: Value, power: &str) {
        let spec = json!({"class": "small", "disks": [{"name": "data", "boot": true}], "networkInterfaces": [],
            "placement": placement, "power": power, "stop": {"gracePeriodSeconds": 5}});
        self.apply("VM", "web", spec).await;
    }

    /// Waits until a host alone has the data of the disk, and the other one has removed its file.
    async fn until_only_on(&self, host: &str, has: &FakeSystem, former: &str, had: &FakeSystem) {
        let status = async || self.disk_status("data").await;
        let is_there = async || {
            let status = status().await;
            status.binding.is_some_and(|binding| binding.host == host) && status.former_host.is_none()
        };
        self.until("the next host has reported its copy", is_there).await;
        // It looks at what it has left once a minute, and when something of it changes.
        let hosts: Api<Host> = Api::all(self.admin.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"looked-after": host}}}));
        hosts.patch(former, &PatchParams::default(), &patch).await.expect("it is there");
        let count = async |system: &FakeSystem| system.volumes().await.expect("they are listed").len();
        self.until("the former host has removed its file", async || count(had).await == 0).await;
        assert_eq!(count(has).await, 1);
    }
}

#[tokio::test]
async fn a_vm_moves_with_its_disk_to_a_host_that_copies_it_and_back_and_one_host_has_the_data_at_a_time() {
    let fleet = Fleet::new().await;
    let [first, second] = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let _first = fleet.join_with("h1", "a", &first, Some(server().await)).await;
    let _second = fleet.join_with("h2", "a", &second, Some(server().await)).await;
    for host in ["h1", "h2"] {
        fleet.until("it is there", async || fleet.host_exists(host).await).await;
    }
    fleet.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    fleet.apply("Disk", "data", json!({"size": "1Gi"})).await;
    fleet.declare_mover(json!({"host": "h1"}), "Running").await;
    fleet.until_vm("web", "runs", runs).await;
    for (host, has, former, had) in [("h2", &second, "h1", &first), ("h1", &first, "h2", &second)] {
        let placement = json!({"host": host, "movePolicy": "WhenStopped"});
        fleet.declare_mover(placement.clone(), "Stopped").await;
        fleet.until_vm("web", "is bound to the next host", |vm| host_of(vm) == host).await;
        fleet.until_only_on(host, has, former, had).await;
        fleet.declare_mover(placement, "Running").await;
        let vm = fleet.until_vm("web", "runs there", runs).await;
        assert_eq!(host_of(&vm), host);
    }
    assert!(first.violations().is_empty() && second.violations().is_empty());
}
