# A disk that several VMs write to: for guests with a cluster file system (GFS2, OCFS2), or an application made for it.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "writers-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# Blank at first.
resource "berth_disk" "common" {
  name   = "writers-common"
  size   = "64Mi"
  access = "ReadWriteMany"
}

# All on one host: that of the first.
resource "berth_vm" "writer" {
  count  = 2
  name   = "writer-${count.index}"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "writer-${count.index}-root", boot = true, template = { image = berth_image.base.name } },
    { name = berth_disk.common.name },
  ]
}

output "addresses" {
  value = berth_vm.writer[*].private_address
}
