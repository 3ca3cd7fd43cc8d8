# VMs on different hosts whose packets to each other are encrypted between the hosts. Each host needs wireguard-tools, and WireGuard in its
# kernel or wireguard-go.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "ledger" {
  name       = "ledger"
  cidr       = "10.96.0.0/24"
  encryption = "WireGuard"
}

resource "berth_image" "system" {
  name   = "ledger-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_placement_group" "ledger" {
  name     = "ledger"
  strategy = "spread"
}

resource "berth_vm" "ledger" {
  for_each = toset(["ledger-a", "ledger-b"])

  name               = each.key
  cpus               = 1
  memory             = var.memory
  placement          = { group = berth_placement_group.ledger.name }
  disks              = [{ name = "${each.key}-root", boot = true, template = { image = berth_image.system.name, size = var.disk_size } }]
  network_interfaces = [{ network = berth_network.ledger.name }]

  wait_for = "guest"
}

output "addresses" {
  value = { for name, vm in berth_vm.ledger : name => vm.private_address }
}
