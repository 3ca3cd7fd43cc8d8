//! Bad schedules of snapshots, backups, and their repositories.

use serde_json::{Value as Json, json};

use super::{Bad, everywhere, here, with};

pub(super) fn schedules() -> Vec<Bad> {
    let schedule = || json!({"name": "s", "schedule": "@daily", "vms": ["web"], "keep": {"last": 1}});
    let scheduled = |pointer: &str, value: Json| with(schedule(), pointer, value);
    let of_disks = |pointer: &str, value: Json| {
        with(with(scheduled("/vms", Json::Null), "/disks", json!(["data"])), pointer, value)
    };
    let selecting = |labels: Json| with(scheduled("/vms", Json::Null), "/vm_selector", labels);
    let backup =
        |repository: &str, keep: Json| scheduled("/backup", json!({"repository": repository, "keep": keep}));
    vec![
        everywhere(scheduled("/schedule", json!("0 3 * *")), "schedule", "4 fields"),
        everywhere(scheduled("/schedule", json!("@every 1h")), "schedule", "none of @yearly"),
        everywhere(scheduled("/schedule", json!("TZ=UTC 0 3 * * *")), "schedule", "beside the schedule"),
        here(scheduled("/schedule", json!("0 24 * * *")), "schedule", "hour: \"24\""),
        here(scheduled("/schedule", json!("0 3 31 2 *")), "schedule", "never has a moment"),
        here(scheduled("/time_zone", json!("Europe/Atlantis")), "time_zone", "is not a time zone"),
        everywhere(scheduled("/time_zone", json!("a b")), "time_zone", "is not a time zone"),
        everywhere(scheduled("/vms", json!(["a/b"])), "vms[0]", "not a DNS label"),
        everywhere(scheduled("/vms", json!(["a", "b", "a"])), "vms[2]", "named twice"),
        everywhere(scheduled("/vms", json!([])), "vms", "The list is empty"),
        everywhere(scheduled("/vms", Json::Null), "vms", "set either"),
        everywhere(scheduled("/vm_selector", json!({"a": "b"})), "vms", "set either"),
        everywhere(scheduled("/disks", json!(["data"])), "vms", "set either"),
        everywhere(of_disks("/disk_selector", json!({"a": "b"})), "disks", "set either"),
        everywhere(of_disks("/disks", json!(["a", "a"])), "disks[1]", "named twice"),
        everywhere(of_disks("/disks", json!(["a/b"])), "disks[0]", "not a DNS label"),
        everywhere(
            with(of_disks("/disks", Json::Null), "/disk_selector", json!({})),
            "disk_selector",
            "at least one label",
        ),
        everywhere(selecting(json!({})), "vm_selector", "at least one label"),
        everywhere(selecting(json!({"a": "b c"})), "vm_selector[\"a\"]", "value of a label"),
        everywhere(scheduled("/keep", json!({})), "keep", "at least one snapshot"),
        everywhere(
            scheduled("/keep", json!({"hourly": 20, "daily": 5})),
            "keep",
            "25 together, and at most 24",
        ),
        everywhere(scheduled("/keep/last", json!(25)), "keep.last", "25 is not between 0 and 24"),
        everywhere(backup("a/b", json!({"last": 1})), "backup.repository", "not a DNS label"),
        everywhere(backup("r", json!({})), "backup.keep", "at least one backup"),
        everywhere(
            backup("r", json!({"hourly": 300, "daily": 201})),
            "backup.keep",
            "501 together, and at most 500",
        ),
        everywhere(backup("r", json!({"last": 501})), "backup.keep.last", "501 is not between 0 and 500"),
        everywhere(
            scheduled("/starting_deadline_seconds", json!(59)),
            "starting_deadline_seconds",
            "59 is not between 60 and 86400",
        ),
    ]
}

pub(super) fn backups() -> Vec<Bad> {
    let backup = || json!({"name": "b", "repository": "nas", "snapshot": "s"});
    let existing = |text: &str| json!({"name": "b", "repository": "nas", "existing": text});
    vec![
        everywhere(with(backup(), "/repository", json!("a/b")), "repository", "not a DNS label"),
        everywhere(with(backup(), "/snapshot", json!("a/b")), "snapshot", "not a DNS label"),
        everywhere(with(backup(), "/snapshot", Json::Null), "snapshot", "set either"),
        everywhere(with(backup(), "/existing", json!("v-1/b-1")), "snapshot", "set either"),
        everywhere(existing("v-1"), "existing", "is not the identity of a backup"),
        everywhere(existing("V-1/b-1"), "existing", "is not the identity of a backup"),
        everywhere(existing("v-1/b-1/c"), "existing", "is not the identity of a backup"),
        everywhere(existing(&format!("{}/b", "v".repeat(81))), "existing", "joined by"),
        everywhere(with(backup(), "/deletion_policy", json!("Keep")), "deletion_policy", "is not one of"),
    ]
}

pub(super) fn repositories() -> Vec<Bad> {
    let nas = || json!({"name": "r", "folder": "nas", "password_secret_name": "p"});
    let s3 = || {
        json!({"name": "r", "credentials_secret_name": "c", "password_secret_name": "p",
            "s3": {"endpoint": "https://s3.example.org", "bucket": "b-1"}})
    };
    let at = |name: &str, text: &str| with(s3(), &format!("/s3/{name}"), json!(text));
    let verified = |days: Json, bandwidth: &str| {
        with(nas(), "/verification", json!({"interval_days": days, "bandwidth": bandwidth}))
    };
    vec![
        everywhere(with(nas(), "/folder", Json::Null), "s3", "set either"),
        everywhere(with(s3(), "/folder", json!("nas")), "s3", "set either"),
        everywhere(with(nas(), "/folder", json!("/mnt/nas")), "folder", "not a path"),
        everywhere(with(nas(), "/folder", json!("nas-")), "folder", "at both ends"),
        everywhere(with(nas(), "/folder", json!("")), "folder", "empty"),
        everywhere(with(nas(), "/folder", json!("f".repeat(37))), "folder", "longer than 36"),
        everywhere(with(nas(), "/password_secret_name", json!("a/b")), "password_secret_name", "DNS label"),
        everywhere(with(nas(), "/credentials_secret_name", json!("c")), "credentials_secret_name", "for s3"),
        everywhere(
            with(s3(), "/credentials_secret_name", Json::Null),
            "credentials_secret_name",
            "accessKeyID and secretAccessKey",
        ),
        everywhere(
            with(s3(), "/credentials_secret_name", json!("a/b")),
            "credentials_secret_name",
            "DNS label",
        ),
        everywhere(at("endpoint", "s3.example.org"), "s3.endpoint", "is not the URL of a server"),
        everywhere(at("endpoint", "https://s3.example.org/bucket"), "s3.endpoint", "without a path"),
        everywhere(at("endpoint", "https://me@s3.example.org"), "s3.endpoint", "is not the URL"),
        everywhere(at("region", "eu north"), "s3.region", "is not a region"),
        everywhere(at("bucket", "Backups"), "s3.bucket", "is not the name of a bucket"),
        everywhere(at("bucket", "backups-"), "s3.bucket", "at both ends"),
        everywhere(at("bucket", "b"), "s3.bucket", "shorter than 3 characters"),
        everywhere(at("endpoint", "http://"), "s3.endpoint", "shorter than 8 characters"),
        everywhere(at("prefix", "/a"), "s3.prefix", "is not the beginning of keys"),
        everywhere(at("prefix", "a//b"), "s3.prefix", "or twice"),
        everywhere(at("prefix", "a b"), "s3.prefix", "is not the beginning of keys"),
        everywhere(verified(json!(0), "64Mi"), "verification.interval_days", "0 is not between 1 and 365"),
        everywhere(
            verified(json!(366), "64Mi"),
            "verification.interval_days",
            "366 is not between 1 and 365",
        ),
        everywhere(verified(json!(7), "1Ki"), "verification.bandwidth", "from 1Mi to 100Gi"),
        everywhere(verified(json!(7), "101Gi"), "verification.bandwidth", "from 1Mi to 100Gi"),
        everywhere(verified(json!(7), "fast"), "verification.bandwidth", "is not a quantity"),
    ]
}
