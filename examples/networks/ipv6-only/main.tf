# Two VMs on a network without IPv4. They get their addresses by DHCPv6, and find each other by name.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "six" {
  name        = "six"
  ipv6_cidr   = "fd00:60::/64"
  ipv6_egress = "Masquerade"
  dns_domain  = "six.internal"
}

resource "berth_security_group" "web" {
  name = "six-web"
  ingress = [
    { name = "http", protocol = "tcp", ports = ["80"], cidrs = [berth_network.six.ipv6_cidr] },
  ]
}

resource "berth_image" "system" {
  name   = "six-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "web" {
  name   = "six-web"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "six-web-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [{
    network         = berth_network.six.name
    ipv6_address    = "fd00:60::8:80"
    security_groups = [berth_security_group.web.name]
  }]
  bootstrap = { user_data = var.user_data["web"] }
  wait_for  = var.wait_for
}

resource "berth_vm" "client" {
  name               = "six-client"
  cpus               = 1
  memory             = "512Mi"
  disks              = [{ name = "six-client-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  network_interfaces = [{ network = berth_network.six.name }]
  bootstrap          = { user_data = var.user_data["client"] }
  wait_for           = var.wait_for
}

output "addresses" {
  value = { web = berth_vm.web.private_address, client = berth_vm.client.private_address }
}
