//! `berth disk-backup list`, `berth disk-backup verify`, `berth disk-backup restore-vm`: backups of disks, as a whole.

mod list;
mod restore_vm;
mod restored;
mod verify;

pub(super) use list::list;
pub(super) use restore_vm::restore_vm;
pub(super) use verify::verify;
