output "hosts" {
  description = "The host of each member."
  value       = { for name, vm in berth_vm.this : name => vm.host }
}

output "public_addresses" {
  description = "The public address of each member."
  value       = { for name, address in berth_public_ip.this : name => address.address }
}
