output "name" {
  description = "Name of the VM."
  value       = berth_vm.this.name
}

output "private_address" {
  description = "Address in the VM's network."
  value       = berth_vm.this.private_address
}

output "public_address" {
  description = "Public address, or null."
  value       = one(berth_public_ip.this[*].address)
}

output "uid" {
  description = "Unique for each VM that ever has the name."
  value       = berth_vm.this.uid
}
