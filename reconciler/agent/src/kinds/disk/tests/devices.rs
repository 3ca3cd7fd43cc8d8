//! Disks that are block devices of the host.

use berth_qemu::machine::Format;
use jiff::Timestamp;
use serde_json::json;

use super::super::*;
use crate::kinds::disk::status::status;

use super::{GIB, deleted, disk, volume};

fn declared() -> Disk {
    disk(json!({"source": {"device": "nvme"}}), json!({}))
}

fn taken(problem: Option<&str>) -> Observed {
    let facts = volume(if problem.is_some() { 0 } else { 2 * GIB }).volume.expect("it has one");
    let problem = problem.map(str::to_owned);
    let facts = VolumeFacts { path: "/dev/nvme0n1".into(), format: Format::Raw, problem, ..facts };
    Observed { volume: Some(facts), ..Observed::default() }
}

#[test]
fn a_disk_takes_its_block_device_and_reports_the_size_of_that() {
    let steps = plan(&declared(), &Observed::default()).steps;
    let [Step::UseDevice(new)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((new.device.as_str(), new.size, new.pool.as_str()), ("nvme", None, "default"));
    let waits = Observed { user_waits: true, ..Observed::default() };
    assert!(plan(&declared(), &waits).steps.is_empty(), "its VM may yet go elsewhere");

    let ready = plan(&declared(), &taken(None));
    assert!(matches!(ready.readiness, Readiness::Ready(..)) && ready.steps.is_empty(), "{ready:?}");
    let report = status(&declared(), &taken(None), &ready.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(report.size.as_deref(), Some("2Gi"));
    let grown = Observed { open_size: Some(GIB), ..taken(None) };
    let step = Step::GrowOnline { volume: "v-1".into(), bytes: 2 * GIB };
    assert_eq!(plan(&declared(), &grown).steps, [step], "the guest sees that the device has grown");
}

#[test]
fn a_device_that_is_gone_or_too_small_is_said_and_keeps_its_size() {
    let gone = taken(Some("it is mounted"));
    let planned = plan(&declared(), &gone);
    assert_eq!(planned.readiness.reason(), Reason::DeviceUnavailable);
    assert!(planned.steps.is_empty() && planned.readiness.message().contains("it is mounted"));
    let mut made = declared();
    made.status.get_or_insert_default().size = Some("2Gi".to_owned());
    let report = status(&made, &gone, &planned.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(report.size.as_deref(), Some("2Gi"));
    let mut mounted = taken(Some("it is mounted"));
    mounted.volume.as_mut().expect("set").size = 3 * GIB;
    let report = status(&declared(), &mounted, &planned.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(report.size.as_deref(), Some("3Gi"), "it is a disk that was made, whatever is in its way now");

    let large = plan(&disk(json!({"size": "4Gi", "source": {"device": "nvme"}}), json!({})), &taken(None));
    assert_eq!((large.steps.len(), large.readiness.reason()), (0, Reason::InvalidSpec));
    assert!(large.readiness.message().contains("nvme has 2Gi"), "{large:?}");
    let small = plan(&disk(json!({"size": "1Gi", "source": {"device": "nvme"}}), json!({})), &taken(None));
    assert!(matches!(small.readiness, Readiness::Ready(..)) && small.steps.is_empty(), "{small:?}");
}

#[test]
fn a_disk_that_was_a_device_never_gets_another_one_by_itself() {
    for (status, why) in [
        (json!({"size": "2Gi"}), "the record of that is gone"),
        (json!({"size": "2Gi", "formerHost": "h0"}), "block device nvme of host h0"),
        (json!({"formerHost": "h0"}), "block device nvme of host h0"),
    ] {
        let planned = plan(&disk(json!({"source": {"device": "nvme"}}), status), &Observed::default());
        assert_eq!((planned.steps.len(), planned.readiness.reason()), (0, Reason::DiskLost), "{planned:?}");
        assert!(planned.readiness.message().contains(why), "{planned:?}");
    }
}

#[test]
fn a_disk_that_does_not_say_that_it_is_a_device_is_not_used_and_only_gives_it_up() {
    let mut plain = disk(json!({"size": "2Gi", "deletionPolicy": "Retain"}), json!({"size": "2Gi"}));
    let planned = plan(&plain, &taken(None));
    assert_eq!((planned.steps.len(), planned.readiness.reason()), (0, Reason::NotSupported), "{planned:?}");
    assert!(planned.readiness.message().contains("source.device"), "{planned:?}");
    plain = deleted(plain);
    let given_up = [Step::Trash { pool: "default".into(), volume: "v-1".into() }, Step::Release];
    assert_eq!(plan(&plain, &taken(None)).steps, given_up);
}

#[test]
fn a_deleted_disk_gives_its_device_up_also_if_that_is_gone_or_to_be_retained() {
    let mut disk = deleted(declared());
    disk.spec.deletion_policy = DeletionPolicy::Retain;
    let given_up = [Step::Trash { pool: "default".into(), volume: "v-1".into() }, Step::Release];
    for observed in [taken(None), taken(Some("it is gone"))] {
        assert_eq!(plan(&disk, &observed).steps, given_up);
    }
}
