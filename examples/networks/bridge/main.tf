terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# The network that the hosts' bridge is on. It is declared in berth-shared, by an administrator, and VMs of all namespaces name it.
# berth gives out the addresses of the range; nothing else of the network may use them. With dhcp, each host also answers the DHCP
# requests of its own VMs, for guests without cloud-init. Guests ask their host for names, at an address that no machine of the network
# has: the VM fixed is fixed.default.vms.example.org.
resource "berth_network" "lan" {
  namespace  = "berth-shared"
  name       = "lan"
  type       = "Bridge"
  bridge     = { name = var.bridge }
  cidr       = "203.0.113.0/24"
  ipv4       = { gateway = "203.0.113.1", range = "203.0.113.50-203.0.113.59", dhcp = true, name_server = "203.0.113.3" }
  dns_domain = "vms.example.org"
}

# The same bridge, for VMs that ask the network's own DHCP server. With source_check, a guest sends only from the address that the
# server has leased to it, and its interfaces may have security groups.
resource "berth_network" "office" {
  namespace = "berth-shared"
  name      = "office"
  type      = "Bridge"
  bridge    = { name = var.bridge }
  ipv4      = { allocation = "External", source_check = "Lease" }
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = var.memory
}

resource "berth_image" "debian" {
  name   = "debian"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_disk" "root" {
  for_each = toset(["fixed", "external"])
  name     = "${each.key}-root"
  image    = berth_image.debian.name
  size     = var.disk_size
}

resource "berth_vm" "fixed" {
  name               = "fixed"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.root["fixed"].name, boot = true }]
  network_interfaces = [{ network = berth_network.lan.name }]
  bootstrap          = { user_data = var.user_data }
}

resource "berth_vm" "external" {
  name               = "external"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.root["external"].name, boot = true }]
  network_interfaces = [{ network = berth_network.office.name }]
  bootstrap          = { user_data = var.user_data }
}

# The address that berth has given out. The lease of the other VM is in status.observed_addresses of its data source.
output "address" {
  value = berth_vm.fixed.private_address
}
