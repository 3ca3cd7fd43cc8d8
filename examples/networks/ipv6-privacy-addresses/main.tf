# Two VMs on different hosts, on a network without IPv4 whose guests may use stable private (RFC 7217) and temporary (RFC 8981) addresses.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "private" {
  name                   = "private"
  ipv6_cidr              = "fd00:92::/64"
  ipv6_autoconfiguration = true
  ipv6_privacy_addresses = true
  dns_domain             = "private.internal"
}

resource "berth_image" "system" {
  name   = "private-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_placement_group" "private" {
  name     = "private"
  strategy = "spread"
}

resource "berth_vm" "private" {
  for_each = toset(["private-a", "private-b"])

  name               = each.key
  cpus               = 1
  memory             = var.memory
  placement          = { group = berth_placement_group.private.name }
  disks              = [{ name = "${each.key}-root", boot = true, template = { image = berth_image.system.name, size = var.disk_size } }]
  network_interfaces = [{ network = berth_network.private.name }]
  bootstrap          = { user_data = var.user_data }
  wait_for           = var.wait_for
}

# The addresses that follow from the MAC addresses. The names of the VMs lead to those that the guests choose.
output "addresses" {
  value = { for name, vm in berth_vm.private : name => vm.private_address }
}
