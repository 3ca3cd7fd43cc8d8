# A new disk with the data of the backup, on whichever host its VM is placed. All data is verified while it is written.
resource "berth_disk" "restored" {
  name   = "backup-restored"
  source = { backup = berth_backup.data.name }
}

resource "berth_disk" "restored_root" {
  name  = "backup-restored-root"
  size  = "4Gi"
  image = berth_image.server.name
}

# It starts once the data is there, which takes as long as reading it from the repository does.
resource "berth_vm" "restored" {
  name   = "backup-restored"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.restored_root.name, boot = true },
    { name = berth_disk.restored.name },
  ]

  timeouts {
    create = "1h"
  }
}

output "restored_address" {
  value = berth_vm.restored.private_address
}
