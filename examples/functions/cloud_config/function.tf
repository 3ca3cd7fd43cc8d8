locals {
  user_data = provider::berth::cloud_config({
    packages = ["nginx"]
    write_files = [{
      path        = "/etc/motd"
      permissions = "0644"
      content     = "Managed by Terraform.\n"
    }]
  })
}

output "user_data" {
  value = local.user_data
}
