terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_network" "storage" {
  name = "storage"
  cidr = "10.81.0.0/24"
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}

resource "berth_image" "debian" {
  name   = "debian-12"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# The second interface can be added, removed, and have its link taken down while the VM runs. A guest that should configure it
# when it appears needs a file such as this one: systemd-networkd asks for an address on every Ethernet card.
resource "berth_vm" "web" {
  name  = "web"
  class = berth_vm_class.small.name
  disks = [{ name = "root", boot = true, template = { image = berth_image.debian.name, size = "4Gi" } }]
  network_interfaces = [
    { name = "nic0" },
    { name = "storage", network = berth_network.storage.name, link = "Up" },
  ]
  bootstrap = {
    user_data = <<-EOT
      #cloud-config
      write_files:
        - path: /etc/systemd/network/90-any.network
          content: |
            [Match]
            Type=ether
            [Network]
            DHCP=ipv4
    EOT
  }
}
