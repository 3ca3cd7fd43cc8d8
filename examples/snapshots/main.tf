# A VM with disks for its data and its logs. vm-snapshot.tf has a snapshot of all its disks at one moment. snapshot.tf has a snapshot of
# one of them, and a second VM on a copy of it.
#
# To bring the data of the snapshot of the VM back into all its disks, stop the VM, and start it again:
#
#   terraform apply -var restore=snapshots-all -var power=Stopped
#   terraform apply -var restore=snapshots-all

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

  # The snapshot of each disk has the name of that of the VM, with the place of the disk in the VM's list.
  restore = var.restore == null ? null : { snapshot = "${var.restore}-0" }
}

resource "berth_disk" "data" {
  name    = "snapshots-data"
  size    = "1Gi"
  restore = var.restore == null ? null : { snapshot = "${var.restore}-1" }
}

resource "berth_disk" "log" {
  name    = "snapshots-log"
  size    = "512Mi"
  restore = var.restore == null ? null : { snapshot = "${var.restore}-2" }
}

resource "berth_vm" "server" {
  name   = "snapshots"
  cpus   = 1
  memory = "512Mi"
  power  = var.power
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
    { name = berth_disk.log.name },
  ]
}

output "address" {
  value = berth_vm.server.private_address
}
