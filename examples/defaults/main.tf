# Defaults of a configuration: its new VMs run on the hosts of one zone, and their interfaces are on its own network. VMs that exist
# keep theirs: another zone or network here changes nothing about them.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {
  network       = "defaults"
  host_selector = { "topology.kubernetes.io/zone" = var.zone }
}

resource "berth_network" "own" {
  name = "defaults"
  cidr = "10.95.0.0/24"
}

resource "berth_image" "system" {
  name = "defaults"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

# It declares neither a network nor a placement. With placement = {} it would run on any host.
resource "berth_vm" "web" {
  name   = "defaults"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "defaults-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } },
  ]
  depends_on = [berth_network.own]
}

output "address" {
  value = berth_vm.web.private_address
}
