# VMs that find each other by name: each of this network is NAME.app.internal, and for its neighbours also just NAME.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "app" {
  name       = "app"
  cidr       = "10.87.0.0/24"
  dns_domain = var.domain
}

resource "berth_image" "system" {
  name   = "names-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "app" {
  for_each = var.vms

  name               = each.key
  cpus               = 1
  memory             = "512Mi"
  disks              = [{ name = "${each.key}-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  network_interfaces = [{ network = berth_network.app.name }]

  wait_for = "guest"
}

output "addresses" {
  value = { for name, vm in berth_vm.app : "${name}.${berth_network.app.dns_domain}" => vm.private_address }
}
