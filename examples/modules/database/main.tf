# A VM with a data disk that outlives it: another image, class or user data never touches the data.

locals {
  # The only disk without a partition table or a file system becomes the data disk, once.
  user_data = <<-EOT
    #cloud-config
    bootcmd:
      - |
        if ! blkid -L data; then
          for disk in $(lsblk --nodeps --noheadings --paths --output NAME,TYPE | awk '$2 == "disk" { print $1 }'); do
            [ -n "$(lsblk --noheadings --output FSTYPE,PARTTYPE "$disk" | tr -d '[:space:]')" ] || mkfs.ext4 -q -L data "$disk"
          done
        fi
    mounts:
      - [LABEL=data, ${var.data_path}, auto, "defaults,nofail"]
    packages: ${jsonencode(var.packages)}
  EOT
}

resource "berth_disk" "root" {
  name  = "${var.name}-root"
  image = var.image
  size  = var.disk_size
}

# Protected against deletion, and its file stays even after that.
resource "berth_disk" "data" {
  name                = "${var.name}-data"
  size                = var.data_size
  pool                = var.data_pool
  deletion_policy     = var.protected ? "Retain" : "Delete"
  deletion_protection = var.protected
}

resource "berth_vm" "this" {
  name  = var.name
  class = var.class
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
  network_interfaces = [{ network = var.network }]
  bootstrap = {
    ssh_authorized_keys = var.ssh_authorized_keys
    user_data           = coalesce(var.user_data, local.user_data)
    user_data_policy    = "ignore"
  }
  stop                = { mode = "Graceful", grace_period_seconds = 300 }
  restart_policy      = "Always"
  deletion_protection = var.protected
  wait_for            = "guest"
}
