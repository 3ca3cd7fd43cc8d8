# A network whose IPv6 prefix comes from a pool: routers outside route 2001:db8:100::/56 to the hosts, and each network takes a /64 of it.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# Declared once by an administrator, for the networks of all namespaces.
resource "berth_ip_pool" "prefixes" {
  name             = "prefixes"
  network_prefixes = ["2001:db8:100::/56"]
}

resource "berth_network" "routed" {
  name        = "routed"
  cidr        = "10.88.0.0/24"
  ipv6        = { pool = berth_ip_pool.prefixes.name }
  ipv6_egress = "Routed"
}

resource "berth_image" "system" {
  name   = "prefix-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "web" {
  name               = "prefix-web"
  cpus               = 1
  memory             = "256Mi"
  disks              = [{ name = "prefix-web-root", boot = true, template = { image = berth_image.system.name, size = var.disk_size } }]
  network_interfaces = [{ network = berth_network.routed.name }]
}

output "addresses" {
  value = berth_vm.web.addresses["nic0"]
}
