output "private_address" {
  description = "Address in the VM's network."
  value       = berth_vm.this.private_address
}

output "data_disk" {
  description = "Name of the data disk."
  value       = berth_disk.data.name
}
