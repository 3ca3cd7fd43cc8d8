# A disk whose data another namespace copies. `shared_with` of the disk lists the namespaces that may do so. In other namespaces the disk cannot be
# copied, and it is not shown whether it exists.

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
