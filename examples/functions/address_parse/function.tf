locals {
  parsed = provider::berth::address_parse("10.0.0.5/24")
}

output "address" {
  value = local.parsed.address # "10.0.0.5"
}

output "network" {
  value = local.parsed.network # "10.0.0.0/24"
}

output "prefix_length" {
  value = local.parsed.prefix_length # 24
}
