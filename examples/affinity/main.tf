# Two web servers on different hosts, and a cache in the zone of one of them that shares its host with no batch job: by the labels of VMs,
# whichever configuration of the namespace they come from.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name   = "affinity-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "web" {
  count  = 2
  name   = "affinity-web-${count.index}"
  labels = { app = "affinity-web" }
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "affinity-web-${count.index}-root", boot = true, template = { image = berth_image.base.name } }]
  placement = {
    affinity = [{ name = "replicas", vm_selector = { app = "affinity-web" } }]
  }
}

resource "berth_vm" "cache" {
  name   = "affinity-cache"
  labels = { app = "affinity-cache" }
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = "affinity-cache-root", boot = true, template = { image = berth_image.base.name } }]
  placement = {
    affinity = [
      { name = "web", vm_selector = { app = "affinity-web" }, strategy = "pack", topology_key = var.topology_key },
      { name = "batch", vm_selector = { app = "affinity-batch" } },
    ]
  }
}

output "hosts" {
  value = { web = berth_vm.web[*].host, cache = berth_vm.cache.host }
}
