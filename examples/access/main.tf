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

# A guest without any network, reached by the vsock device of its host:
#   berth ssh --vsock debian@vault
resource "berth_vm" "vault" {
  name               = "vault"
  cpus               = 1
  memory             = "1Gi"
  vsock              = true
  network_interfaces = []
  disks              = [{ name = "root", boot = true, template = { image = berth_image.debian.name, size = "10Gi" } }]
  bootstrap = {
    ssh_authorized_keys = [var.ssh_public_key]
    user_data           = var.user_data
  }
}
