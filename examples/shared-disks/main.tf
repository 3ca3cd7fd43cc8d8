# A namespace whose disk other namespaces have the data of. Its owner decides which ones; a namespace that is not in the list learns
# nothing of a disk, not even that there is one.

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "base" {
  name      = "builder-base"
  namespace = var.builder
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name        = "builder-root"
  namespace   = var.builder
  image       = berth_image.base.name
  size        = "2Gi"
  shared_with = [var.consumer]
}

resource "berth_vm" "builder" {
  name      = "builder"
  namespace = var.builder
  cpus      = 1
  memory    = "512Mi"
  disks     = [{ name = berth_disk.root.name, boot = true }]
}

# In the namespace of another team: a copy of the disk, and an image with its data. The VM of the disk runs on.
resource "berth_disk" "copy" {
  name       = "consumer-root"
  namespace  = var.consumer
  source     = { disk = berth_disk.root.name, disk_namespace = berth_disk.root.namespace }
  depends_on = [berth_vm.builder]
}

resource "berth_image" "copy" {
  name       = "consumer-image"
  namespace  = var.consumer
  source     = { disk = berth_disk.root.name, disk_namespace = berth_disk.root.namespace }
  depends_on = [berth_vm.builder]
}
