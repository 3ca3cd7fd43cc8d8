# A VM with a default user of its own, a password that is in no plan and no state, and SSH keys from a Secret.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "guest" {
  name = "bootstrap"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "bootstrap-root"
  size  = "4Gi"
  image = berth_image.guest.name
}

resource "berth_vm" "guest" {
  name   = "bootstrap"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.root.name, boot = true }]
  bootstrap = {
    user                = "admin"
    password_wo         = var.password
    password_wo_version = 1
    password_expires    = false
    # kubectl create secret generic team-keys --from-file=alice.pub --from-file=bob.pub
    ssh_authorized_keys_secret = var.keys_secret
    # In base64 and compressed, as tools pass it on: the guest gets it decoded.
    user_data = base64gzip(provider::berth::cloud_config({
      write_files = [{ path = "/etc/motd", content = "Managed by Terraform.\n" }]
    }))
  }
}

output "host" {
  value = berth_vm.guest.host
}
