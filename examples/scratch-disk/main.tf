# VMs with a temporary disk on their host, which is empty at each start: for caches and intermediate results.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "scratch-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# Each VM of the class has one.
resource "berth_vm_class" "compute" {
  name         = "scratch-compute"
  cpus         = 1
  memory       = "512Mi"
  scratch_disk = { size = "1Gi", filesystem = { type = "ext4", label = "scratch" } }
}

resource "berth_vm" "compute" {
  name      = "scratch"
  class     = berth_vm_class.compute.name
  disks     = [{ name = "scratch-root", boot = true, template = { image = berth_image.base.name } }]
  bootstrap = { user_data = var.user_data }
  wait_for  = "guest"
}

output "address" {
  value = berth_vm.compute.private_address
}
