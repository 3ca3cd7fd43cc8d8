terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

moved {
  from = libvirt_domain.web
  to   = berth_vm.web
}

moved {
  from = libvirt_volume.root
  to   = berth_disk.root
}

moved {
  from = libvirt_domain.cache
  to   = berth_vm.cache
}

moved {
  from = proxmox_virtual_environment_vm.app
  to   = berth_vm.app
}

resource "berth_vm_class" "small" {
  name     = "small"
  cpus     = 2
  memory   = "2Gi"
  firmware = "BIOS"
}

resource "berth_disk" "root" {
  name = "web-root"
  size = "10Gi"
}

resource "berth_disk" "other" {
  for_each = toset(["cache", "app"])

  name = each.key
  size = "4Gi"
}

resource "berth_vm" "web" {
  name  = "web"
  class = berth_vm_class.small.name
  disks = [{ name = berth_disk.root.name, boot = true }]

  network_interfaces = [{ name = "nic0", mac_address = "52:54:00:aa:00:02" }]
}

resource "berth_vm" "cache" {
  name  = "cache-1"
  class = berth_vm_class.small.name
  disks = [{ name = berth_disk.other["cache"].name, boot = true }]
}

resource "berth_vm" "app" {
  name  = "app"
  class = berth_vm_class.small.name
  disks = [{ name = berth_disk.other["app"].name, boot = true }]

  network_interfaces = [{ mac_address = "bc:24:11:00:00:01" }]
}
