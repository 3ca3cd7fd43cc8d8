# The size of a data disk, and that of a second one with half as much.
locals {
  size = "20Gi"
  half = provider::berth::bytes_quantity(ceil(provider::berth::quantity_bytes(local.size) / 2))
}

output "bytes" {
  value = provider::berth::quantity_bytes(local.size) # 21474836480
}

output "half" {
  value = local.half # "10Gi"
}
