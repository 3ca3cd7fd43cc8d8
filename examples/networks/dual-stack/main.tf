# Two VMs on a network with IPv4 and IPv6. Their addresses are known after the apply, before a guest runs.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "app" {
  name      = "app"
  cidr      = "10.86.0.0/24"
  ipv6_cidr = "fd00:60::/64"
  # "None" (default): guests reach each other and their gateway. "Masquerade" and "Routed" lead to the outside.
  ipv6_egress = var.ipv6_egress
  # A network behind the VM `web`. New guests get the route by their cloud-init network configuration.
  routes = [{ name = "office", to = "fd09::/48", via = "fd00:60::8:80" }]
}

resource "berth_security_group" "web" {
  name = "web"
  ingress = [
    { name = "http", protocol = "tcp", ports = ["80"], cidrs = [berth_network.app.cidr, berth_network.app.ipv6_cidr] },
  ]
}

resource "berth_image" "system" {
  name   = "dual-stack-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "web" {
  name   = "dual-web"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "dual-web-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [{
    network         = berth_network.app.name
    ipv6_address    = "fd00:60::8:80"
    security_groups = [berth_security_group.web.name]
  }]
  bootstrap = { user_data = var.user_data["web"] }
  wait_for  = "guest"
}

resource "berth_vm" "client" {
  name   = "dual-client"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "dual-client-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [{
    network = berth_network.app.name
    # An address that it may take beside its own, for example one that two VMs share by VRRP.
    allowed_addresses = ["fd00:60::100/128"]
  }]
  bootstrap = { user_data = var.user_data["client"] }
  wait_for  = "guest"
}

output "addresses" {
  value = { web = berth_vm.web.addresses["nic0"], client = berth_vm.client.addresses["nic0"] }
}
