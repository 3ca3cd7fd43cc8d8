# VMs of one kind, no two of them on one host, each with a public address of its own.

locals {
  members = { for index in range(var.replicas) : "${var.name}-${index}" => index }
}

resource "berth_placement_group" "this" {
  name         = var.name
  strategy     = "spread"
  enforcement  = var.enforcement
  topology_key = var.topology_key
}

resource "berth_disk" "root" {
  for_each = local.members
  name     = each.key
  image    = var.image
  size     = var.disk_size
}

resource "berth_public_ip" "this" {
  for_each = local.members
  name     = each.key
  pool     = var.ip_pool
}

resource "berth_vm" "this" {
  for_each           = local.members
  name               = each.key
  class              = var.class
  disks              = [{ name = berth_disk.root[each.key].name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.this[each.key].name }]
  placement          = { group = berth_placement_group.this.name }
  bootstrap = {
    ssh_authorized_keys = var.ssh_authorized_keys
    user_data           = var.user_data
  }
  wait_for = "guest"
}
