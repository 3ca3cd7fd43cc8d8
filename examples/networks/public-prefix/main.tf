# A VM with a public IPv6 prefix, for example for its containers: its host routes the whole prefix to it.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# A router outside routes this range to the host of the VM.
resource "berth_ip_pool" "routed6" {
  name  = "routed6"
  mode  = "local"
  cidrs = ["2001:db8:0:8::/64"]
  # None of its PublicIPs takes more than a /72.
  min_prefix_length = 72
}

resource "berth_public_ip" "containers" {
  name          = "containers"
  pool          = berth_ip_pool.routed6.name
  prefix_length = 80
}

resource "berth_network" "prefixed" {
  name                   = "prefixed"
  cidr                   = "10.92.0.0/24"
  ipv6_cidr              = "fd00:92::/64"
  ipv6_egress            = "Routed"
  ipv6_autoconfiguration = true
}

resource "berth_image" "system" {
  name   = "prefixed-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "containers" {
  name   = "prefixed-containers"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "prefixed-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  network_interfaces = [{ network = berth_network.prefixed.name, public_ipv6 = berth_public_ip.containers.name }]

  bootstrap = {
    # The guest gets no address of the prefix by itself: here it takes the second one.
    user_data = <<-EOT
      #!/bin/sh
      ip -6 addr add ${cidrhost(berth_public_ip.containers.prefix, 1)}/128 dev lo
    EOT
  }
  wait_for = "guest"
}

output "prefix" {
  value = berth_public_ip.containers.prefix
}

output "address" {
  value = cidrhost(berth_public_ip.containers.prefix, 1)
}
