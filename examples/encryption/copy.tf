# A snapshot has the key of its disk, and so has each copy. A copy declares that it is encrypted, with the same class or another one.
resource "berth_disk_snapshot" "data" {
  name = "encryption-data-1"
  disk = berth_disk.data.name

  # The disk has a file once its VM has been started.
  depends_on = [berth_vm.server]
}

resource "berth_disk" "copy" {
  name       = "encryption-copy"
  source     = { snapshot = berth_disk_snapshot.data.name }
  encryption = { key_class = local.classes[var.key_class] }
}

resource "berth_disk" "copy_root" {
  name       = "encryption-copy-root"
  size       = "4Gi"
  image      = berth_image.server.name
  encryption = { key_class = local.classes[var.key_class] }
}

resource "berth_vm" "copy" {
  name   = "encryption-copy"
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
