# A blank disk that the host formats once, and a root disk that is a full copy of its image.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "formatted-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# Independent of the image in the host's cache.
resource "berth_disk" "root" {
  name       = "formatted-root"
  image      = berth_image.base.name
  clone_mode = "Full"
}

# The guest mounts it by its label, and keeps the data in it.
resource "berth_disk" "data" {
  name       = "formatted-data"
  size       = "1Gi"
  filesystem = { type = "ext4", label = "data" }
}

resource "berth_vm" "files" {
  name   = "formatted"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
  bootstrap = { user_data = var.user_data }
  wait_for  = "guest"
}

output "address" {
  value = berth_vm.files.private_address
}
