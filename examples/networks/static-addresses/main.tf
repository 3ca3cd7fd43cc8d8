# A network without DHCP: the guest gets its address, router and name server by cloud-init, and its card a name of its own.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "quiet" {
  name  = "quiet"
  cidr  = "10.88.0.0/24"
  dhcp4 = false
}

resource "berth_image" "system" {
  name   = "quiet-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "quiet" {
  name   = "quiet"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "quiet-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [{
    network    = berth_network.quiet.name
    guest_name = "lan0"
  }]

  bootstrap = { user_data = var.user_data }
}

output "address" {
  value = berth_vm.quiet.private_address
}
