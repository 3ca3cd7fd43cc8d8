terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_vm_class" "web" {
  name   = "web"
  cpus   = 1
  memory = "512Mi"
}

resource "berth_image" "web" {
  name   = "web"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# No two members on one host. A member without a host of its own waits, and its condition has the reason.
resource "berth_placement_group" "web" {
  name     = "web"
  strategy = "spread"
}

resource "berth_disk" "root" {
  count = var.replicas
  name  = "web-${count.index}"
  image = berth_image.web.name
  size  = var.disk_size
}

# Public addresses on the network segment that the hosts are on.
resource "berth_ip_pool" "segment" {
  name  = "segment"
  mode  = "l2"
  cidrs = var.public_cidrs
}

# The host of the VM answers for the address.
resource "berth_public_ip" "web" {
  count = var.replicas
  name  = "web-${count.index}"
  pool  = berth_ip_pool.segment.name
}

resource "berth_vm" "web" {
  count              = var.replicas
  name               = "web-${count.index}"
  class              = berth_vm_class.web.name
  disks              = [{ name = berth_disk.root[count.index].name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.web[count.index].name }]
  placement          = { group = berth_placement_group.web.name }
  bootstrap          = { user_data = file("cloud-init.yaml") }
  wait_for           = "guest"
  on_timeout         = "fail"
  timeouts {
    create = var.patience
  }
}

output "hosts" {
  value = { for vm in berth_vm.web : vm.name => vm.host }
}

output "private_addresses" {
  value = { for vm in berth_vm.web : vm.name => vm.private_address }
}

output "public_addresses" {
  value = { for address in berth_public_ip.web : address.name => address.address }
}
