resource "berth_vm_snapshot" "before_upgrade" {
  name = "before-upgrade"
  vm   = "web"
}

# A copy of one of its disks at that moment, on the same host.
resource "berth_disk" "copy" {
  name   = "copy"
  source = { snapshot = berth_vm_snapshot.before_upgrade.snapshots["web-data"] }
}
