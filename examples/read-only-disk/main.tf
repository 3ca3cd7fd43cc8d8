# A disk that several VMs read: tools, packages or a dataset, stored once.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "readers-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# Its data is that of an image, of a snapshot or of another disk, and never changes.
resource "berth_disk" "tools" {
  name   = "readers-tools"
  access = "ReadOnlyMany"
  image  = berth_image.base.name
}

# All on one host: that of the first.
resource "berth_vm" "reader" {
  count  = 2
  name   = "reader-${count.index}"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "reader-${count.index}-root", boot = true, template = { image = berth_image.base.name } },
    { name = berth_disk.tools.name, read_only = true },
  ]
}

output "addresses" {
  value = berth_vm.reader[*].private_address
}
