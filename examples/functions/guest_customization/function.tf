locals {
  command = provider::berth::guest_customization({
    hostname = "web-1"
    timezone = "Europe/Vienna"
    interfaces = [{
      mac_address = "52:54:00:12:34:56"
      addresses   = ["192.0.2.10/24"]
      gateway     = "192.0.2.1"
      nameservers = ["192.0.2.53"]
    }]
  })
}

# In a VM whose image has qemu-guest-agent, and no cloud-init:
# hooks = { post_start = { exec = { command = local.command }, timeout_seconds = 300, failure_policy = "Fail" } }
output "settings" {
  value = slice(local.command, 4, length(local.command))
}
