# Two replicas of a database on different hosts of one zone, if possible on those with fast disks, and their data in that zone. The labels
# are those of the hosts: berth host --label topology.kubernetes.io/zone=b, kubectl label host, or labels of a berth_host.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "zones-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# All VMs that name the group follow these rules.
resource "berth_placement_group" "database" {
  name                    = "zones-database"
  strategy                = "spread"
  host_selector           = { "topology.kubernetes.io/zone" = var.zone }
  preferred_host_selector = { disk = "nvme" }
}

# Also a VM without the group that uses it first is placed in that zone.
resource "berth_disk" "data" {
  count     = 2
  name      = "zones-database-${count.index}-data"
  size      = "10Gi"
  placement = { host_selector = { "topology.kubernetes.io/zone" = var.zone } }
}

resource "berth_vm" "database" {
  count  = 2
  name   = "zones-database-${count.index}"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "zones-database-${count.index}-root", boot = true, template = { image = berth_image.base.name } },
    { name = berth_disk.data[count.index].name },
  ]
  placement = { group = berth_placement_group.database.name }
}

output "hosts" {
  value = berth_vm.database[*].host
}
