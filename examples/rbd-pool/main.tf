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

# A disk of a pool of its host, here the pool `default`.
resource "berth_disk" "work" {
  name = "rbd-work"
  size = "1Gi"
}

# A VM with disks in both pools: a snapshot of it has all of them at one moment.
resource "berth_vm" "work" {
  name   = "rbd-work"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.archive.name, boot = true },
    { name = berth_disk.work.name },
  ]
}

resource "berth_vm_snapshot" "work" {
  name = "rbd-work"
  vm   = berth_vm.work.name
}

# A full copy of the disk of the host in Ceph.
resource "berth_disk" "work_in_ceph" {
  name   = "rbd-work-copy"
  source = { disk = berth_disk.work.name }
  pool   = berth_storage_pool.rbd.name
}

# The host of its first VM creates the RBD image. Another host takes it over if that host is lost.
resource "berth_disk" "archive" {
  name = "rbd-archive"
  size = "1Gi"
  pool = berth_storage_pool.rbd.name
}

# Encrypted on its host: Ceph gets neither the key nor readable data. The Secret of the class has 32 random bytes in base64.
resource "berth_key_class" "ledger" {
  name   = "rbd-ledger"
  secret = { name = "rbd-ledger" }
}

resource "berth_disk" "ledger" {
  name       = "rbd-ledger"
  size       = "1Gi"
  pool       = berth_storage_pool.rbd.name
  encryption = { key_class = berth_key_class.ledger.name }
}
