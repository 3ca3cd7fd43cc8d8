# The data of this moment. It is kept until it is destroyed, whatever becomes of the disk.
resource "berth_disk_snapshot" "data" {
  name = "snapshots-data-1"
  disk = berth_disk.data.name

  # The disk has a file once its VM has been started.
  depends_on = [berth_vm.server]
}

# A copy of that moment: no data is copied, and it is as large as the disk was.
resource "berth_disk" "copy" {
  name   = "snapshots-copy"
  source = { snapshot = berth_disk_snapshot.data.name }
}

resource "berth_disk" "copy_root" {
  name  = "snapshots-copy-root"
  size  = "4Gi"
  image = berth_image.server.name
}

# It runs on the host of the snapshot.
resource "berth_vm" "copy" {
  name   = "snapshots-copy"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.copy_root.name, boot = true },
    { name = berth_disk.copy.name },
  ]
}

output "copy_address" {
  value = berth_vm.copy.private_address
}

output "taken_at" {
  value = berth_disk_snapshot.data.taken_at
}
