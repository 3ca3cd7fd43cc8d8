# A VM with disks for its data and its logs. vm-snapshot.tf has a snapshot of all its disks at one moment, and one with the
# memory of its guest. snapshot.tf has a snapshot of one of them, and a second VM on a copy of it. vm-copy.tf has the whole VM of the
# snapshot beside the first one.
#
# To bring the data of the snapshot of the VM back into all its disks, in one apply that restarts the VM:
#
#   terraform apply -var restore=snapshots-all -var allow_reboot=true

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
  name = "snapshots-data"
  size = "1Gi"
}

resource "berth_disk" "log" {
  name = "snapshots-log"
  size = "512Mi"
}

resource "berth_vm" "server" {
  name   = "snapshots"
  cpus   = 1
  memory = "512Mi"
  uuid   = "2f6c1d84-93b5-4c1e-8a47-6d0e5b7f9c31"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
    { name = berth_disk.log.name },
  ]

  # The name, and no reference: the snapshot refers to the VM.
  restore      = var.restore == null ? null : { snapshot = var.restore }
  allow_reboot = var.allow_reboot
}

output "address" {
  value = berth_vm.server.private_address
}
