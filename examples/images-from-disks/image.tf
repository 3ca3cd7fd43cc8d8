resource "berth_disk_snapshot" "root" {
  name = "golden-root-1"
  disk = berth_disk.root.name

  # The disk has a file once its VM has been started.
  depends_on = [berth_vm.golden]
}

# The data of the snapshot, in a file of its own.
resource "berth_image" "root" {
  name   = "golden-root-1"
  source = { snapshot = berth_disk_snapshot.root.name }
}

# The data of the disk at the moment at which the image is made. The VM runs on.
resource "berth_image" "data" {
  name       = "golden-data-1"
  source     = { disk = berth_disk.data.name }
  depends_on = [berth_vm.golden]
}

resource "berth_vm" "worker" {
  name   = "golden-worker"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "golden-worker-root", boot = true, template = { image = berth_image.root.name } },
    { name = "golden-worker-data", template = { image = berth_image.data.name, size = "2Gi" } },
  ]
}

output "worker_address" {
  value = berth_vm.worker.private_address
}
