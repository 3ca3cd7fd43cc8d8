locals {
  # From a base that all VMs share, and what this one adds.
  base = <<-EOT
    #cloud-config
    packages: [qemu-guest-agent]
    ssh_pwauth: no
  EOT

  user_data = provider::berth::cloud_config_merge([
    local.base,
    provider::berth::cloud_config({ packages = ["nginx"] }),
  ])
}

output "user_data" {
  value = local.user_data
}
