# A VM with SSH keys and a password that change while it runs: a key that Terraform declares, and those of Secrets that another program
# rotates.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "guest" {
  name = "guest-users"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "guest-users-root"
  size  = "4Gi"
  image = berth_image.guest.name
}

resource "berth_vm" "guest" {
  name   = "guest-users"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.root.name, boot = true }]

  # The guest agent, which the image must have, sets them in the running guest.
  guest_users = [{
    name                = var.user
    ssh_authorized_keys = [var.ssh_public_key]
    # kubectl create secret generic team-keys --from-file=alice.pub --from-file=bob.pub
    ssh_authorized_keys_secret = var.keys_secret
    # kubectl create secret generic login --from-literal=password=…
    password_secret = var.password_secret
  }]

  # After each start, and every day, the guest's package manager upgrades the agent.
  guest_agent = { policy = "Upgrade" }
}

output "address" {
  value = berth_vm.guest.private_address
}
