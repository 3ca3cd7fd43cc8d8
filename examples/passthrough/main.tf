terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "debian" {
  name   = "debian-12"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

# A host offers its GPUs, vGPUs and licence keys under names:
#   berth host --pci-device gpu-a100=0000:01:00 --vgpu t4-4q=0000:41:00.0/nvidia-232 --usb-device licence-key=0403:6001
resource "berth_vm" "train" {
  name        = "train"
  cpus        = 8
  memory      = "64Gi"
  pci_devices = var.gpu == null ? [] : [{ name = var.gpu, count = var.gpus }]
  vgpus       = var.vgpu == null ? [] : [{ name = var.vgpu }]
  usb_devices = var.licence_key == null ? [] : [{ name = var.licence_key }]
  disks       = [{ name = "root", boot = true, template = { image = berth_image.debian.name, size = "100Gi" } }]
}

output "host" {
  value = berth_vm.train.host
}
