//! SnapshotSchedule: snapshots of VMs at the moments of a cron expression, and how many of them are kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{Timestamp, tz::TimeZone};
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Conditions, ResourceName, VMSnapshot,
    cron::{Cron, ParseCronError, monday_of, time_zone},
    vm_snapshot::LONGEST_VM_SNAPSHOT_NAME,
};

/// On a VMSnapshot that a SnapshotSchedule made: the name of the SnapshotSchedule. Without it, the snapshot is kept.
pub const SNAPSHOT_SCHEDULE_LABEL: &str = "berth.dev/snapshot-schedule";
/// On a VMSnapshot that a SnapshotSchedule made: the moment of the schedule, RFC 3339.
pub const SCHEDULED_AT_ANNOTATION: &str = "berth.dev/scheduled-at";
/// The greatest number of VMs of a SnapshotSchedule.
pub const MOST_SCHEDULED_VMS: usize = 100;
/// The greatest number of snapshots of a VM that a SnapshotSchedule keeps: a disk has 32 at most, and some are for other purposes.
pub const MOST_KEPT: i64 = 24;

/// Snapshots of VMs at the moments of a cron expression. Each is a VMSnapshot: the data of all disks of a VM at one moment. Those that no
/// rule of `keep` keeps are deleted. A SnapshotSchedule that is deleted leaves its snapshots.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SnapshotSchedule",
    plural = "snapshotschedules",
    singular = "snapshotschedule",
    shortname = "snapsched",
    namespaced,
    status = "SnapshotScheduleStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "Snapshots of VMs at the moments of a cron expression.",
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Time-Zone", type_ = "string", json_path = ".spec.timeZone"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.vms"),
    printcolumn(name = "Snapshots", type_ = "integer", json_path = ".status.snapshots"),
    printcolumn(name = "Last-Schedule", type_ = "date", json_path = ".status.lastScheduleTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Next-Schedule", type_ = "string", priority = 1, json_path = ".status.nextScheduleTime"),
    printcolumn(name = "Last-Successful", type_ = "date", priority = 1, json_path = ".status.lastSuccessfulTime"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.vms) != has(self.vmSelector)").message("set either vms or vmSelector")
)]
pub struct SnapshotScheduleSpec {
    /// The moments, as a cron expression of five fields: minute, hour, day of the month, month, day of the week; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly`, `@yearly`. At most one snapshot a minute. A change takes effect at once.
    #[schemars(length(min = 1, max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[-0-9*,/?A-Za-z]+([ ]+[-0-9*,/?A-Za-z]+){4})$')").message("must be a cron expression of five fields (minute, hour, day of the month, month, day of the week), such as '0 3 * * *', or @hourly, @daily, @weekly, @monthly or @yearly; a time zone is set in timeZone"))]
    pub schedule: String,
    /// The time zone of the schedule and of the days, weeks, months and years of `keep`, by its IANA name, such as `Europe/Stockholm`. Default
    /// `UTC`. A time that a change of the clocks skips is the moment of the change; of one that it repeats, the first counts.
    #[serde(default = "default_time_zone")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z][A-Za-z0-9_+/-]*$"))]
    pub time_zone: String,
    /// Names of the VMs, in the same namespace. Set either this or `vmSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MOST_SCHEDULED_VMS))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub vms: Option<Vec<ResourceName>>,
    /// Labels: the VMs of the same namespace that have all of them when a snapshot is due, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = selecting_labels)]
    pub vm_selector: Option<BTreeMap<String, String>>,
    /// How many snapshots of each VM are kept. The last one that is taken is always kept.
    pub keep: Keep,
    /// How late a snapshot may be taken, in seconds, after a time in which no controller ran. Of the moments that were missed only the last one
    /// counts. Default 3600.
    #[serde(default = "default_deadline")]
    #[schemars(range(min = 60, max = 86_400))]
    pub starting_deadline_seconds: i64,
    /// Whether to pause: no snapshot is taken and none is deleted. Default false.
    #[serde(default)]
    pub suspend: bool,
}

fn default_time_zone() -> String {
    "UTC".into()
}

fn default_deadline() -> i64 {
    3600
}

/// As many labels, and such values, as labels of an object can be. A selector without any would select all VMs.
fn selecting_labels(schema: &mut schemars::Schema) {
    schema.insert("minProperties".into(), 1.into());
    crate::vm::bounded_labels(schema);
}

/// The snapshots of a VM to keep: those that at least one of the rules keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly >= 1").message("keep must keep at least one snapshot"),
    validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly <= 24").message("the numbers in keep must not be more than 24 together: a disk is on at most 32 snapshots")
)]
pub struct Keep {
    /// The last snapshots, so many of them. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub last: i64,
    /// The last snapshot of an hour, for so many hours that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub hourly: i64,
    /// The last snapshot of a day, for so many days that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub daily: i64,
    /// The last snapshot of a week, which begins on Monday, for so many weeks that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub weekly: i64,
    /// The last snapshot of a month, for so many months that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub monthly: i64,
    /// The last snapshot of a year, for so many years that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT))]
    pub yearly: i64,
}

impl Keep {
    /// Returns those of the moments that a rule keeps. The last one is kept by each rule.
    pub fn kept(&self, moments: &BTreeSet<Timestamp>, zone: &TimeZone) -> BTreeSet<Timestamp> {
        let mut kept: BTreeSet<Timestamp> = moments.last().copied().into_iter().collect();
        let mut rule = |count: i64, period: &dyn Fn(Timestamp) -> String| {
            let mut last = None;
            let mut periods = 0;
            for moment in moments.iter().rev() {
                let current = Some(period(*moment));
                if current == last {
                    continue;
                }
                periods += 1;
                if periods > count {
                    break;
                }
                last = current;
                kept.insert(*moment);
            }
        };
        let local = |moment: Timestamp| zone.to_datetime(moment);
        rule(self.last, &|moment| moment.to_string());
        // An hour that a change of the clocks repeats is two hours.
        rule(self.hourly, &|m| format!("{} {}", local(m).strftime("%F %H"), zone.to_offset(m)));
        rule(self.daily, &|m| local(m).date().to_string());
        rule(self.weekly, &|m| monday_of(local(m).date()).to_string());
        rule(self.monthly, &|m| local(m).strftime("%Y-%m").to_string());
        rule(self.yearly, &|m| local(m).strftime("%Y").to_string());
        kept
    }
}

/// The observed state of a SnapshotSchedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotScheduleStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: snapshots of all its VMs are taken when they are due. `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The last moment of the schedule for which snapshots were made, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub last_schedule_time: Option<String>,
    /// The next moment of the schedule, RFC 3339. None while it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub next_schedule_time: Option<String>,
    /// When the last of its snapshots was taken, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub last_successful_time: Option<String>,
    /// The number of its VMs, at the last moment of the schedule or later.
    #[serde(default)]
    pub vms: i64,
    /// The number of snapshots that are taken and kept, of all VMs.
    #[serde(default)]
    pub snapshots: i64,
}

/// The parts of a schedule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The cron expression.
    #[error("schedule: {0}")]
    Cron(#[from] ParseCronError),
    /// The time zone.
    #[error(
        "timeZone: there is no time zone {0:?}: use an IANA name such as \"Europe/Stockholm\", or \"UTC\""
    )]
    TimeZone(String),
}

impl SnapshotScheduleSpec {
    /// Returns the cron expression and its time zone.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used.
    pub fn parsed(&self) -> Result<(Cron, TimeZone), ScheduleError> {
        let zone =
            time_zone(&self.time_zone).ok_or_else(|| ScheduleError::TimeZone(self.time_zone.clone()))?;
        Ok((Cron::parse(&self.schedule)?, zone))
    }
}

/// Returns the name of the VMSnapshot of a VM for a moment of a schedule: the beginning of both names, the minute in UTC, and a part of
/// the hash of both names, which tells `a-b` and `c` from `a` and `b-c`.
pub fn scheduled_snapshot_name(schedule: &str, vm: &str, moment: Timestamp) -> String {
    let minute = moment.strftime("%Y%m%d%H%M");
    let hash = Sha256::digest(format!("{schedule}/{vm}"));
    let end = format!("-{minute}-{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2]);
    let both = format!("{schedule}-{vm}");
    let begin = &both[..both.len().min(LONGEST_VM_SNAPSHOT_NAME - end.len())];
    format!("{}{end}", begin.trim_end_matches('-'))
}

impl VMSnapshot {
    /// Returns the name of the schedule that made it, and the moment of the schedule. Of a snapshot that has the label and was not made by
    /// a schedule, it is none.
    pub fn scheduled(&self) -> Option<(&str, Timestamp)> {
        let schedule = self.labels().get(SNAPSHOT_SCHEDULE_LABEL)?;
        let moment = self.annotations().get(SCHEDULED_AT_ANNOTATION)?.parse().ok()?;
        let name = scheduled_snapshot_name(schedule, self.spec.vm.as_str(), moment);
        (self.metadata.name.as_ref() == Some(&name)).then_some((schedule, moment))
    }
}

#[cfg(test)]
mod tests;
