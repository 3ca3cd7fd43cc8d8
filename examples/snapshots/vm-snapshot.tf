# The data of all disks of the VM at one moment.
resource "berth_vm_snapshot" "server" {
  name = "snapshots-all"
  vm   = berth_vm.server.name
}

# With the memory of its guest, which is paused while it is written. A restore continues the guest at that moment:
#
#   terraform apply -var restore=snapshots-running -var allow_reboot=true
resource "berth_vm_snapshot" "running" {
  name   = "snapshots-running"
  vm     = berth_vm.server.name
  memory = true

  # One after the other: no two snapshots of a disk are taken at a time.
  depends_on = [berth_vm_snapshot.server]
}

output "snapshots" {
  value = berth_vm_snapshot.server.snapshots
}
