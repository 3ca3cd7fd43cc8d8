# A disk in a pool of Ceph. The administrator of each host names it: berth host --rbd-pool rbd=vms

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_storage_pool" "rbd" {
  name               = "rbd"
  type               = "RBD"
  overcommit_percent = 200
}

# The host of its first VM creates the RBD image. Another host takes it over if that host is lost.
resource "berth_disk" "archive" {
  name = "rbd-archive"
  size = "1Gi"
  pool = berth_storage_pool.rbd.name
}
