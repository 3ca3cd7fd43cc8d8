# The data of all disks of the VM at one moment.
resource "berth_vm_snapshot" "server" {
  name = "snapshots-all"
  vm   = berth_vm.server.name
}

output "snapshots" {
  value = berth_vm_snapshot.server.snapshots
}
