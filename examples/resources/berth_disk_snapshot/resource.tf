resource "berth_disk_snapshot" "before_upgrade" {
  name = "before-upgrade"
  disk = "data"
}

# A copy of that moment, on the same host. It takes no space at first.
resource "berth_disk" "copy" {
  name   = "copy"
  source = { snapshot = berth_disk_snapshot.before_upgrade.name }
}
