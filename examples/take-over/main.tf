# A guest that ran under another program, for example libvirt: its qcow2 file becomes a disk without being copied, and the VM starts as soon as no
# other program has the file open. With format = "raw" the data of a raw file is copied, and the file stays.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# In a folder of `berth up --disk-dir FOLDER`.
resource "berth_disk" "root" {
  name   = "web"
  source = { file = var.file, format = var.format }

  # The file stays when the disk is destroyed.
  deletion_policy = "Retain"
}

resource "berth_vm" "web" {
  name      = "web"
  cpus      = 1
  memory    = "512Mi"
  placement = { host = var.host }
  disks     = [{ name = berth_disk.root.name, boot = true }]

  network_interfaces = [{ mac_address = var.mac_address }]

  wait_for = "guest"
}

output "address" {
  value = berth_vm.web.private_address
}
