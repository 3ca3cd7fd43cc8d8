# A VM between two networks: its default route leads by the first, and the guests of the second reach the first by it.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "front" {
  name           = "front"
  cidr           = "10.82.0.0/24"
  search_domains = var.search_domains
  # A VPN gateway of the office, for example.
  routes = [{ to = "192.168.0.0/16", via = "10.82.0.9" }]
}

resource "berth_network" "back" {
  name = "back"
  cidr = "10.83.0.0/24"
  routes = [
    { name = "front", to = berth_network.front.cidr, via = "10.83.0.2" },
    { name = "database", to = "10.84.0.0/24", via = "10.83.0.3" },
  ]
}

resource "berth_image" "system" {
  name   = "routes-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "router" {
  name   = "router"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "router-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [
    {
      network = berth_network.front.name
      # It sends packets of the guests of the other network.
      allowed_addresses = [berth_network.back.cidr]
      # For this guest alone.
      routes = [{ name = "lab", to = "172.16.0.0/12", via = "10.82.0.8" }]
    },
    {
      network           = berth_network.back.name
      address           = "10.83.0.2"
      allowed_addresses = [berth_network.front.cidr]
      default_route     = var.default_route_by_back
      dns               = ["10.83.0.53"]
      search_domains    = ["db.example.org"]
    },
  ]

  wait_for = "guest"
}

output "address" {
  value = berth_vm.router.private_address
}
