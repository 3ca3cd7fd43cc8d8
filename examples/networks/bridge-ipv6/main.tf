terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# The network that the hosts' bridge is on, with both families. berth gives out the addresses of the ranges; nothing else of the
# network may use them, and its routers must not let machines form addresses of ipv6.range by themselves.
resource "berth_network" "lan" {
  namespace = "berth-shared"
  name      = "lan"
  type      = "Bridge"
  bridge    = { name = var.bridge }
  cidr      = "203.0.113.0/24"
  ipv4      = { gateway = "203.0.113.1", range = "203.0.113.50-203.0.113.59" }
  ipv6_cidr = "2001:db8:7::/64"
  ipv6      = { gateway = "fe80::1", range = "2001:db8:7::1000-2001:db8:7::1fff" }
  dns       = ["203.0.113.1", "2001:db8:7::1"]
}

# The same bridge, for VMs that get everything from the network's own DHCP server and its routers. With source_check, a guest sends
# only from the IPv6 addresses that it has taken first.
resource "berth_network" "office" {
  namespace = "berth-shared"
  name      = "office"
  type      = "Bridge"
  bridge    = { name = var.bridge }
  ipv4      = { allocation = "External" }
  ipv6      = { allocation = "External", source_check = "Learned" }
}

resource "berth_image" "debian" {
  name   = "debian"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "vm" {
  for_each           = { fixed = berth_network.lan.name, external = berth_network.office.name }
  name               = each.key
  cpus               = 1
  memory             = var.memory
  disks              = [{ name = "${each.key}-root", boot = true, template = { image = berth_image.debian.name, size = var.disk_size } }]
  network_interfaces = [{ network = each.value }]
  bootstrap          = { user_data = var.user_data }
}

# The addresses that berth has given out. Those that the other VM uses are in status.observed_addresses of its data source.
output "addresses" {
  value = berth_vm.vm["fixed"].addresses["nic0"]
}
