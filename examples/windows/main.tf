terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "installer" {
  name   = "windows-installer"
  format = "iso"
  source = { url = var.iso_url, sha256 = var.iso_sha256 }
}

# The drivers for the disk, the network card and the memory, with the guest agent: virtio-win.
resource "berth_image" "drivers" {
  name   = "virtio-win"
  format = "iso"
  source = { url = var.drivers_url, sha256 = var.drivers_sha256 }
}

# Its setup finds the disk once it has loaded the driver "vioscsi" from the second drive.
resource "berth_vm" "office" {
  name     = "office"
  cpus     = 4
  memory   = "8Gi"
  guest_os = "Windows"
  firmware = "UEFISecureBoot"
  tpm      = true
  graphics = "VGA"
  disks    = [{ name = "office-root", boot = true, template = { size = var.disk_size } }]
  cdroms = [
    { name = "installer", image = berth_image.installer.name, connected = !var.installed },
    { name = "drivers", image = berth_image.drivers.name },
  ]
}

# The installed system, generalized with sysprep. VMs whose boot disk is made from it are Windows guests without declaring it.
resource "berth_image" "golden" {
  count    = var.generalized ? 1 : 0
  name     = "windows-golden"
  guest_os = "Windows"
  source   = { disk = berth_vm.office.disks[0].name }
}

# Another VM of the installed system. Windows reads the answer file at its first start, and asks nothing.
resource "berth_vm" "copy" {
  count     = var.generalized ? 1 : 0
  name      = "office-2"
  cpus      = 4
  memory    = "8Gi"
  firmware  = "UEFISecureBoot"
  tpm       = true
  graphics  = "VGA"
  disks     = [{ name = "office-2-root", boot = true, template = { image = berth_image.golden[0].name } }]
  bootstrap = { sysprep_unattend = templatefile("unattend.xml", { name = "OFFICE-2" }) }
}
