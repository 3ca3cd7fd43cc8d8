# The VM of the snapshot beside the first one: with the data of that moment, and with the UUID of the first one, to which licences may be
# bound. Without `uuid` it has one of its own. Its instance, MAC address and addresses are its own in both cases.
resource "berth_disk" "vm_copy" {
  for_each = { root = berth_disk.root.name, data = berth_disk.data.name, log = berth_disk.log.name }
  name     = "snapshots-vm-copy-${each.key}"
  source   = { snapshot = berth_vm_snapshot.server.snapshots[each.value] }
}

resource "berth_vm" "vm_copy" {
  name   = "snapshots-vm-copy"
  cpus   = 1
  memory = "512Mi"
  uuid   = berth_vm.server.uuid
  disks = [
    { name = berth_disk.vm_copy["root"].name, boot = true },
    { name = berth_disk.vm_copy["data"].name },
    { name = berth_disk.vm_copy["log"].name },
  ]
}

output "vm_copy_address" {
  value = berth_vm.vm_copy.private_address
}
