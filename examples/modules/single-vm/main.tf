# One VM with its boot disk, and a public address if asked for.

resource "berth_disk" "root" {
  name  = "${var.name}-root"
  image = var.image
  size  = var.disk_size
}

resource "berth_public_ip" "this" {
  count = var.public ? 1 : 0
  name  = var.name
}

resource "berth_vm" "this" {
  name               = var.name
  class              = var.class
  cpus               = var.cpus
  memory             = var.memory
  firmware           = var.firmware
  labels             = var.labels
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ network = var.network, public_ip = one(berth_public_ip.this[*].name) }]
  bootstrap = {
    ssh_authorized_keys = var.ssh_authorized_keys
    user_data           = var.user_data
    user_data_policy    = "replace"
  }
  wait_for = var.wait_for
}
