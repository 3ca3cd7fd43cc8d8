# A VM with a block device of its host: an LVM volume, or a whole disk. The administrator of the host offers it under a name:
#   berth up --block-device spare=/dev/vg0/spare

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "device-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# The device itself, with its size and its data, which stays when the disk is destroyed.
resource "berth_disk" "data" {
  name   = "device-data"
  source = { device = "spare" }
}

# On a host that offers the device.
resource "berth_vm" "db" {
  name   = "device-db"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "device-root", boot = true, template = { image = berth_image.base.name } },
    { name = berth_disk.data.name },
  ]
}

output "address" {
  value = berth_vm.db.private_address
}
