resource "berth_vm_snapshot" "before_upgrade" {
  name = "before-upgrade"
  vm   = "web"
}

# A copy of one of its disks at that moment, on the same host.
resource "berth_disk" "data_copy" {
  name   = "data-copy"
  source = { snapshot = berth_vm_snapshot.before_upgrade.snapshots["web-data"] }
}
