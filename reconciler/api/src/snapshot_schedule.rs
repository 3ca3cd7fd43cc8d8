//! SnapshotSchedule: snapshots of VMs or Disks at the moments of a cron expression, backups of these disks, and how many of each are kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{Timestamp, tz::TimeZone};
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Backup, Conditions, DiskSnapshot, ResourceName, VMSnapshot,
    cron::{Cron, ParseCronError, monday_of, time_zone},
    vm_snapshot::LONGEST_VM_SNAPSHOT_NAME,
};

/// On a VMSnapshot, a DiskSnapshot or a Backup that a SnapshotSchedule made: the name of the SnapshotSchedule. Without it, the object is kept.
pub const SNAPSHOT_SCHEDULE_LABEL: &str = "berth.dev/snapshot-schedule";
/// On a Backup that a SnapshotSchedule made: the name of the Disk.
pub const DISK_LABEL: &str = "berth.dev/disk";
/// On a VMSnapshot, a DiskSnapshot or a Backup that a SnapshotSchedule made: the moment of the schedule, RFC 3339.
pub const SCHEDULED_AT_ANNOTATION: &str = "berth.dev/scheduled-at";
/// The greatest number of VMs, or of Disks, of a SnapshotSchedule.
pub const MOST_SCHEDULED_VMS: usize = 100;
/// The greatest number of snapshots of a VM that a SnapshotSchedule keeps: a disk has 32 at most, and some are for other purposes.
pub const MOST_KEPT: i64 = 24;
/// The greatest number of backups of a disk that a SnapshotSchedule keeps.
pub const MOST_KEPT_BACKUPS: i64 = 500;

/// Snapshots of VMs, or of Disks, at the moments of a cron expression. Each is a VMSnapshot, the data of all disks of a VM at one moment, or
/// the DiskSnapshot of a Disk, which may have no VM. Those that no rule of `keep` keeps are deleted. With `backup`, each disk of a snapshot is
/// also backed up. A SnapshotSchedule that is deleted leaves its
/// snapshots and its backups.
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
    doc = "Snapshots of VMs or Disks at the moments of a cron expression.",
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
    printcolumn(name = "Disks", type_ = "integer", priority = 1, json_path = ".status.disks"),
    printcolumn(name = "Last-Successful", type_ = "date", priority = 1, json_path = ".status.lastSuccessfulTime"),
    printcolumn(name = "Backups", type_ = "integer", priority = 1, json_path = ".status.backups"),
    printcolumn(name = "Last-Backup", type_ = "date", priority = 1, json_path = ".status.lastBackupTime"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.vms), has(self.vmSelector), has(self.disks), has(self.diskSelector)].filter(is, is).size() == 1").message("set one of vms, vmSelector, disks and diskSelector")
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
    /// Names of the VMs, in the same namespace. Set one of `vms`, `vmSelector`, `disks` and `diskSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MOST_SCHEDULED_VMS))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub vms: Option<Vec<ResourceName>>,
    /// Labels: the VMs of the same namespace that have all of them when a snapshot is due, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = selecting_labels)]
    pub vm_selector: Option<BTreeMap<String, String>>,
    /// Names of Disks, in the same namespace, also of those that no VM has. Each has snapshots of its own: those of several Disks of a VM are
    /// not of one moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MOST_SCHEDULED_VMS))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub disks: Option<Vec<ResourceName>>,
    /// Labels: the Disks of the same namespace that have all of them when a snapshot is due, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = selecting_labels)]
    pub disk_selector: Option<BTreeMap<String, String>>,
    /// How many snapshots of each VM or Disk are kept, at most 24. The last one that is taken is always kept.
    #[schemars(transform = of_snapshots)]
    #[x_kube(validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly <= 24").message("the numbers in keep must not be more than 24 together: a disk is on at most 32 snapshots"))]
    pub keep: Keep,
    /// Backups: each disk of a snapshot of the schedule is backed up once the snapshot is taken. None: no backup is made, and those that
    /// were made stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<ScheduledBackups>,
    /// How late a snapshot may be taken, in seconds, after a time in which no controller ran. Of the moments that were missed only the last one
    /// counts. Default 3600.
    #[serde(default = "default_deadline")]
    #[schemars(range(min = 60, max = 86_400))]
    pub starting_deadline_seconds: i64,
    /// Whether to pause: no snapshot and no backup is made, and none is deleted. Default false.
    #[serde(default)]
    pub suspend: bool,
}

fn default_time_zone() -> String {
    "UTC".into()
}

fn default_deadline() -> i64 {
    3600
}

/// As many labels, and such values, as labels of an object can be. A selector without any would select all objects.
fn selecting_labels(schema: &mut schemars::Schema) {
    schema.insert("minProperties".into(), 1.into());
    crate::labels::bounded_labels(schema);
}

/// A disk is on fewer snapshots than a repository has backups of it.
fn of_snapshots(schema: &mut schemars::Schema) {
    let rules = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut);
    for rule in rules.into_iter().flat_map(|rules| rules.values_mut()) {
        rule["maximum"] = MOST_KEPT.into();
    }
}

/// The backups that a schedule makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledBackups {
    /// Name of the BackupRepository, in the same namespace. After a change, the backups in the former one stay.
    pub repository: ResourceName,
    /// How many backups of each disk are kept in it, at most 500. Only complete ones count, and the last one of them is always kept.
    pub keep: Keep,
}

/// The snapshots of a VM or a Disk, or the backups of a disk, to keep: those that at least one of the rules keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly >= 1").message("keep must keep at least one"),
    validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly <= 500").message("the numbers in keep must not be more than 500 together")
)]
pub struct Keep {
    /// The last ones, so many of them. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
    pub last: i64,
    /// The last one of an hour, for so many hours that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
    pub hourly: i64,
    /// The last one of a day, for so many days that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
    pub daily: i64,
    /// The last one of a week, which begins on Monday, for so many weeks that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
    pub weekly: i64,
    /// The last one of a month, for so many months that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
    pub monthly: i64,
    /// The last one of a year, for so many years that have one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MOST_KEPT_BACKUPS))]
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
    /// `Ready`: snapshots of all its VMs or Disks are taken when they are due, and backed up if `backup` is declared. `Reconciling`, `Stalled`.
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
    /// The number of its Disks, if it names or selects Disks, at the last moment of the schedule or later.
    #[serde(default)]
    pub disks: i64,
    /// The number of snapshots that are taken and kept, of all VMs or Disks.
    #[serde(default)]
    pub snapshots: i64,
    /// The number of its backups that are complete, of all disks.
    #[serde(default)]
    pub backups: i64,
    /// The moment whose data the last of its complete backups has, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub last_backup_time: Option<String>,
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

/// Returns the name of the VMSnapshot of a VM, or of the DiskSnapshot or the Backup of a Disk, for a moment of a schedule: the beginning of both names, the
/// minute in UTC, and a part of the hash of both names, which tells `a-b` and `c` from `a` and `b-c`.
pub fn scheduled_name(schedule: &str, of: &str, moment: Timestamp) -> String {
    let minute = moment.strftime("%Y%m%d%H%M");
    let hash = Sha256::digest(format!("{schedule}/{of}"));
    let end = format!("-{minute}-{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2]);
    let both = format!("{schedule}-{of}");
    let begin = &both[..both.len().min(LONGEST_VM_SNAPSHOT_NAME - end.len())];
    format!("{}{end}", begin.trim_end_matches('-'))
}

/// Returns the schedule that made an object of this VM or Disk, and the moment. None: it has the label, and no schedule made it.
fn made_by<'a>(object: &'a impl ResourceExt, of: &str) -> Option<(&'a str, Timestamp)> {
    let schedule = object.labels().get(SNAPSHOT_SCHEDULE_LABEL)?;
    let moment = object.annotations().get(SCHEDULED_AT_ANNOTATION)?.parse().ok()?;
    let name = scheduled_name(schedule, of, moment);
    (object.meta().name.as_ref() == Some(&name)).then_some((schedule, moment))
}

impl VMSnapshot {
    /// Returns the name of the schedule that made it, and the moment of the schedule. Of a snapshot that has the label and was not made by
    /// a schedule, it is none.
    pub fn scheduled(&self) -> Option<(&str, Timestamp)> {
        made_by(self, self.spec.vm.as_str())
    }
}

impl DiskSnapshot {
    /// Returns the name of the schedule that made it, and the moment of the schedule. Of a snapshot that has the label and was not made by
    /// a schedule, it is none.
    pub fn scheduled(&self) -> Option<(&str, Timestamp)> {
        made_by(self, self.spec.disk.as_str())
    }
}

/// The origin of a Backup that a schedule made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupOrigin<'a> {
    /// The name of the schedule.
    pub schedule: &'a str,
    /// The name of the Disk.
    pub disk: &'a str,
    /// The moment of the schedule.
    pub moment: Timestamp,
}

impl Backup {
    /// Returns its schedule, disk and moment. Of a backup that has the labels and was not made by a schedule, it is none.
    pub fn scheduled(&self) -> Option<BackupOrigin<'_>> {
        let disk = self.labels().get(DISK_LABEL)?;
        let (schedule, moment) = made_by(self, disk)?;
        Some(BackupOrigin { schedule, disk, moment })
    }
}

#[cfg(test)]
mod tests;
