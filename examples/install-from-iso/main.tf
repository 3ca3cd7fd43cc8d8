terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "installer" {
  name   = "installer"
  format = "iso"
  source = { url = var.iso_url, sha256 = var.iso_sha256 }
}

resource "berth_disk" "root" {
  name = "desktop-root"
  size = var.disk_size
}

resource "berth_public_ip" "desktop" {
  name = "desktop"
}

# The blank disk does not boot, so the VM starts the installer; from then on it boots what was installed.
resource "berth_vm" "desktop" {
  name               = "desktop"
  cpus               = 2
  memory             = var.memory
  firmware           = var.firmware
  graphics           = "VGA"
  resolution         = var.resolution
  keyboard_layout    = var.keyboard_layout
  sound              = true
  disks              = [{ name = berth_disk.root.name, boot = true }]
  cdroms             = [{ name = "installer", image = berth_image.installer.name, connected = var.medium_inserted }]
  network_interfaces = [{ public_ip = berth_public_ip.desktop.name }]
}

output "address" {
  value = berth_public_ip.desktop.address
}
