terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

variable "power" {
  default = "Running"
}

variable "allow_reboot" {
  default = false
}

variable "memory" {
  default = "512Mi"
}

variable "data_size" {
  default = "1Gi"
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = var.memory
}

resource "berth_image" "debian" {
  name   = "debian-12"
  source = { url = "https://example.org/debian.qcow2", sha256 = sha256("debian") }
}

resource "berth_disk" "root" {
  name  = "web-root"
  image = berth_image.debian.name
  size  = "4Gi"
}

resource "berth_disk" "data" {
  name = "web-data"
  size = var.data_size
}

resource "berth_placement_group" "web" {
  name     = "web"
  strategy = "spread"
}

resource "berth_public_ip" "web" {
  name = "web"
}

resource "berth_vm" "web" {
  name               = "web"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.web.name }]
  placement          = { group = berth_placement_group.web.name }
  bootstrap = {
    ssh_authorized_keys = [file("id.pub")]
    user_data           = file("cloud-init.yaml")
  }
  power        = var.power
  allow_reboot = var.allow_reboot
  wait_for     = "guest"
  timeouts {
    create = "10m"
  }
}

resource "berth_hotswap_disk_attachment" "data" {
  vm   = berth_vm.web.name
  disk = berth_disk.data.name
}

output "public_address" {
  value = berth_public_ip.web.address
}

output "private_address" {
  value = berth_vm.web.private_address
}

output "addresses" {
  value = join(" ", flatten(values(berth_vm.web.addresses)))
}
