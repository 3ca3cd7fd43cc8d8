# Limits on a network: its guests reach neither each other nor the outside, one interface has ceilings for its traffic, a class for its
# packets, and a second address that it shares with others, and clients outside reach one port of it.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# Guests reach their gateway, and answer those that reach them by a public address. They open no connection to the outside.
resource "berth_network" "cell" {
  name     = "limits-cell"
  cidr     = "10.99.0.0/24"
  isolated = var.isolated
  egress   = "None"
}

# Its guests keep their own addresses towards the outside, whose routers route the range to the host. DHCPv6 gives out no addresses:
# guests get theirs by their cloud-init network configuration.
resource "berth_network" "routed" {
  name      = "limits-routed"
  cidr      = "10.100.0.0/24"
  egress    = "Routed"
  ipv6_cidr = "fd00:100::/64"
  dhcp6     = false
}

# All four addresses of the range are given out: it is no segment of its own.
resource "berth_ip_pool" "edge" {
  name              = "limits-edge"
  cidrs             = ["198.51.100.32/30"]
  use_all_addresses = true
}

# Entries without a port get one of the range, which they keep.
resource "berth_public_ip" "edge" {
  name       = "limits-edge"
  pool       = berth_ip_pool.edge.name
  port_range = "20000-20009"
  ports      = [{ name = "web", target_port = 80, targets = [berth_vm.server.name] }]
}

resource "berth_image" "system" {
  name   = "limits-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "server" {
  name   = "limits-server"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "limits-server-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [
    {
      name    = "cell"
      network = berth_network.cell.name
      limits = {
        ingress_bandwidth = "100M"
        ingress_burst     = "1Mi"
        ingress_packets   = 50000
        egress_bandwidth  = var.egress_bandwidth
        egress_burst      = "512Ki"
        egress_packets    = 20000
      }
      # Packets of voice: networks outside may send them first.
      dscp = "EF"
      # VRRP: an address and a MAC address that move between two VMs.
      allowed_addresses     = ["10.99.0.100/32"]
      allowed_mac_addresses = ["00:00:5e:00:01:0a"]
    },
    { name = "routed", network = berth_network.routed.name, default_route = false },
  ]

  wait_for = "guest"
}

resource "berth_vm" "client" {
  name               = "limits-client"
  cpus               = 1
  memory             = "512Mi"
  disks              = [{ name = "limits-client-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  network_interfaces = [{ network = berth_network.cell.name }]
  wait_for           = "guest"
}

output "server" {
  value = berth_vm.server.private_address
}

output "client" {
  value = berth_vm.client.private_address
}

output "web" {
  value = "${berth_public_ip.edge.address}:${berth_public_ip.edge.assigned_ports["web"]}"
}
