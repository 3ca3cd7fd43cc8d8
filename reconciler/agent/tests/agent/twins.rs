//! A VM from a snapshot of another one, beside it.

use berth_api::{DataOrigin, Disk, VM};
use serde_json::json;

use crate::disks::take_snapshot;
use crate::fixture::{Fixture, INSTANCE, disk_bound, is_ready, vm_bound};

const UUID: &str = "3b1c9a52-8e0d-4f6b-9c27-5a4d1e0f7b88";
const TWIN: &str = "i-0123456789ac";
const COPY: &str = "v-00000000000000c1";

/// The UUID of the machine, and the origins of its disks, as the VM reports them.
fn reported(vm: &VM) -> (String, Vec<Option<DataOrigin>>) {
    let status = vm.status.as_ref().expect("reported");
    let uuid = status.hardware.as_ref().map(|hardware| hardware.uuid.clone()).unwrap_or_default();
    (uuid, status.disks.iter().map(|disk| disk.origin).collect())
}

#[tokio::test(start_paused = true)]
async fn a_vm_from_a_snapshot_of_another_one_runs_beside_it_with_its_uuid() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let disks = json!([{"name": "root", "boot": true}, {"name": "data"}]);
    fixture.make_vm(json!({"uuid": UUID, "disks": disks})).await;
    fixture.running_vm().await;
    take_snapshot(&fixture).await;
    let source = json!({"source": {"snapshot": "before"}});
    fixture.make::<Disk>("twin-root", source, Some(disk_bound(COPY))).await;
    let twin = json!({"class": "small", "uuid": UUID, "disks": [{"name": "twin-root", "boot": true}]});
    fixture.make::<VM>("twin", twin, Some(vm_bound(TWIN, 3))).await;
    let is_reported = |vm: &VM| is_ready(vm, "Running") && reported(vm).1.iter().all(Option::is_some);
    let twin = fixture.until::<VM>("twin", is_reported).await;
    assert_eq!(reported(&twin), (UUID.to_owned(), vec![Some(DataOrigin::Snapshot)]));
    let first = fixture.until::<VM>("web", is_reported).await;
    let origins = vec![Some(DataOrigin::Image), Some(DataOrigin::Blank)];
    assert_eq!(reported(&first), (UUID.to_owned(), origins));
    for instance in [INSTANCE, TWIN] {
        assert!(fixture.system.hypervisor().view(instance).is_some(), "{instance} runs");
    }
}
