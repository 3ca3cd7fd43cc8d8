output "quantity" {
  value = provider::berth::bytes_quantity(3 * 1024 * 1024 * 1024) # "3Gi"
}
