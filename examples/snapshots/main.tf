# A VM with a disk for its data. snapshot.tf has a snapshot of that disk, and a second VM on a copy of it.
#
# To bring the data of the snapshot back into the disk of the first VM, stop the VM, and start it again:
#
#   terraform apply -var 'restore={snapshot="snapshots-data-1"}' -var power=Stopped
#   terraform apply -var 'restore={snapshot="snapshots-data-1"}'

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "server" {
  name = "snapshots"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "snapshots-root"
  size  = "4Gi"
  image = berth_image.server.name
}

resource "berth_disk" "data" {
  name    = "snapshots-data"
  size    = "1Gi"
  restore = var.restore
}

resource "berth_vm" "server" {
  name   = "snapshots"
  cpus   = 1
  memory = "512Mi"
  power  = var.power
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
}

output "address" {
  value = berth_vm.server.private_address
}
