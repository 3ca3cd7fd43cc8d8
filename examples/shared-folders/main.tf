# A VM that mounts two folders of its host: one to read, one to write to.

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "debian" {
  name   = "debian-12"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# A host shares the folders under these names: berth host --share media=/srv/media:ro --share data=/srv/data
resource "berth_vm" "studio" {
  name   = "studio"
  cpus   = 1
  memory = "512Mi"

  shares = [
    { name = "media", read_only = true },
    { name = "data", tag = "work" },
  ]

  disks     = [{ name = "studio-root", boot = true, template = { image = berth_image.debian.name, size = "4Gi" } }]
  bootstrap = { user_data = var.user_data }
  wait_for  = "guest"
}

output "address" {
  value = berth_vm.studio.private_address
}
