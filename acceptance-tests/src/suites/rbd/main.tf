terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

variable "image_url" {
  type = string
}

variable "image_sha256" {
  type = string
}

variable "data_size" {
  type = string
}

resource "berth_storage_pool" "remote" {
  name                    = "remote"
  type                    = "RBD"
  trash_retention_seconds = 0
}

resource "berth_image" "guest" {
  name = "in-ceph"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "in-ceph-root"
  image = berth_image.guest.name
  size  = "64Mi"
  pool  = berth_storage_pool.remote.name
}

resource "berth_disk" "data" {
  name = "in-ceph-data"
  size = var.data_size
  pool = berth_storage_pool.remote.name
}

resource "berth_vm" "guest" {
  name     = "in-ceph"
  cpus     = 1
  memory   = "128Mi"
  firmware = "BIOS"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
  network_interfaces = [{}]
  stop               = { mode = "Hard" }
  wait_for           = "guest"
}

output "address" {
  value = berth_vm.guest.private_address
}
