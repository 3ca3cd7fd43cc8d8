# A VM that forms its IPv6 address itself. The address is known after the apply, before the guest runs.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "formed" {
  name                   = "formed"
  cidr                   = "10.91.0.0/24"
  ipv6_cidr              = "fd00:91::/64"
  ipv6_autoconfiguration = true
}

resource "berth_image" "system" {
  name   = "formed-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "web" {
  name               = "formed-web"
  cpus               = 1
  memory             = "512Mi"
  disks              = [{ name = "formed-web-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  network_interfaces = [{ network = berth_network.formed.name }]
  wait_for           = "guest"
}

output "address" {
  value = berth_vm.web.network_interfaces[0].ipv6_address
}
