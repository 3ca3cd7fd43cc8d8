terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# A VLAN that comes to the hosts by an interface of theirs. While VMs of it are on a host, berth has a bridge there over that VLAN;
# nothing has to be made on the hosts. The host's own addresses on the interface, without a tag, stay as they are. With trunk_vlans in
# place of vlan, the VM sends and receives frames with a tag of these VLANs beside those without.
resource "berth_network" "vlan" {
  namespace = "berth-shared"
  name      = "vlan"
  type      = "Bridge"
  bridge    = { interface = var.interface, vlan = var.vlan, trunk_vlans = var.trunk_vlans }
  cidr      = "203.0.113.0/24"
  ipv4      = { gateway = "203.0.113.1", range = "203.0.113.60-203.0.113.69" }
  dns       = ["203.0.113.1"]
}

resource "berth_image" "debian" {
  name   = "debian-vlan"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_disk" "root" {
  name  = "tagged-root"
  image = berth_image.debian.name
  size  = var.disk_size
}

resource "berth_vm" "tagged" {
  name               = "tagged"
  cpus               = 1
  memory             = var.memory
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ network = berth_network.vlan.name }]
  bootstrap          = { user_data = var.user_data }
}

output "address" {
  value = berth_vm.tagged.private_address
}
