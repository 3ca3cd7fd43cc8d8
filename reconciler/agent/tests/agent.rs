//! Whole agents on a fake host, against the embedded control plane, in one runtime with paused time.

#[path = "agent/arrivals.rs"]
mod arrivals;
#[path = "agent/balloons.rs"]
mod balloons;
#[path = "agent/behind.rs"]
mod behind;
#[path = "agent/consoles.rs"]
mod consoles;
#[path = "agent/copies.rs"]
mod copies;
#[path = "agent/crash.rs"]
mod crash;
#[path = "agent/disk_reads.rs"]
mod disk_reads;
#[path = "agent/disks.rs"]
mod disks;
#[path = "agent/downloads.rs"]
mod downloads;
#[path = "agent/encryption.rs"]
mod encryption;
#[path = "agent/fixture.rs"]
mod fixture;
#[path = "agent/frozen.rs"]
mod frozen;
#[path = "agent/guest_access.rs"]
mod guest_access;
#[path = "agent/guest_package.rs"]
mod guest_package;
#[path = "agent/guest_users.rs"]
mod guest_users;
#[path = "agent/hooks.rs"]
mod hooks;
#[path = "../../tests/shared/installed.rs"]
mod installed;
#[path = "agent/interfaces.rs"]
mod interfaces;
#[path = "agent/life.rs"]
mod life;
#[path = "agent/media.rs"]
mod media;
#[path = "agent/memory_growth.rs"]
mod memory_growth;
#[path = "agent/memory_snapshots.rs"]
mod memory_snapshots;
#[path = "agent/offline.rs"]
mod offline;
#[path = "agent/power.rs"]
mod power;
#[path = "agent/probes.rs"]
mod probes;
#[path = "agent/secure_boot_keys.rs"]
mod secure_boot_keys;
#[path = "agent/setup.rs"]
mod setup;
#[path = "agent/silence.rs"]
mod silence;
#[path = "agent/sleep.rs"]
mod sleep;
#[path = "agent/start_order.rs"]
mod start_order;
#[path = "agent/suspend.rs"]
mod suspend;
#[path = "agent/twins.rs"]
mod twins;
#[path = "agent/uploads.rs"]
mod uploads;
#[path = "agent/usage.rs"]
mod usage;
