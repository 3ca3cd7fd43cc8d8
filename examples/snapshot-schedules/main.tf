# A VM whose disks have a snapshot of one moment each night, of which some are kept. To bring one back, see ../snapshots.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "server" {
  name = "scheduled"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "scheduled-root"
  size  = "4Gi"
  image = berth_image.server.name
}

resource "berth_disk" "data" {
  name = "scheduled-data"
  size = "1Gi"
}

resource "berth_vm" "server" {
  name   = "scheduled"
  cpus   = 1
  memory = "512Mi"
  # Its snapshots have the labels, too.
  labels = { snapshots = "nightly", team = "web" }
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
}

# All VMs of the namespace with the label. Destroying the schedule keeps the snapshots.
resource "berth_snapshot_schedule" "nightly" {
  name        = "nightly"
  schedule    = var.schedule
  time_zone   = "Europe/Stockholm"
  vm_selector = { snapshots = "nightly" }
  suspend     = var.suspend

  keep = {
    last    = 3
    daily   = 7
    weekly  = 4
    monthly = 6
    yearly  = 2
  }

  # After a time without a controller the last missed one is taken, if it is not older than two hours.
  starting_deadline_seconds = 7200
}
