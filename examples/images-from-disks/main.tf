# A VM that is set up once. image.tf has images of its disks, and a second VM that is made from them.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name = "golden-base"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "golden-root"
  size  = "4Gi"
  image = berth_image.base.name
}

resource "berth_disk" "data" {
  name = "golden-data"
  size = "1Gi"
}

resource "berth_vm" "golden" {
  name   = "golden"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
}

output "address" {
  value = berth_vm.golden.private_address
}
