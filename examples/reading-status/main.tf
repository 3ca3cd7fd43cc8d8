# Data sources: an image that is chosen by its labels and its version, and the state of a VM, its disk, its host and the pool of its disk.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# Two versions of an image. In practice another configuration declares them, and this one only reads.
resource "berth_image" "base" {
  for_each = toset(["1.9", "1.10"])

  name         = "status-${replace(each.key, ".", "-")}"
  display_name = "Base system ${each.key}"
  version      = each.key
  os           = { family = "Linux", distribution = "debian" }
  labels       = { family = "status-base" }
  source       = { url = var.image_url, sha256 = var.image_sha256 }
}

# The highest version of the family: 1.10 comes after 1.9. With most_recent in place of latest_version it is the image that was
# created last.
data "berth_image" "newest" {
  label_selector = "family=status-base"
  field_selector = "spec.os.distribution=debian"
  latest_version = true
  depends_on     = [berth_image.base]
}

resource "berth_vm" "web" {
  name     = "status-web"
  labels   = { team = "status" }
  cpus     = 1
  memory   = "512Mi"
  disks    = [{ name = "status-web-root", boot = true, template = { image = data.berth_image.newest.name, size = "4Gi" } }]
  wait_for = "guest"
}

# Read after the apply of the VM: a data source that names an attribute of a resource waits for it.
data "berth_vm" "web" {
  name       = berth_vm.web.name
  depends_on = [berth_vm.web]
}

data "berth_vms" "team" {
  label_selector = "team=status"
  ready          = true
  depends_on     = [berth_vm.web]
}

data "berth_disk" "root" {
  name       = berth_vm.web.disks[0].name
  depends_on = [berth_vm.web]
}

data "berth_storage_pool" "of_the_disk" {
  name = data.berth_disk.root.current_pool
}

data "berth_host" "of_the_vm" {
  name = data.berth_vm.web.status.binding.host
}

# All hosts that take VMs.
data "berth_hosts" "ready" {
  ready = true
}
