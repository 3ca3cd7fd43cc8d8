# A VM that moves to another host when its placement changes: at the next stop, with its disks in a pool that the hosts share. With
# -var host=kvm-2 -var allow_reboot=true an apply restarts it there. With -var move_policy=Live it moves while it runs (experimental). The
# administrator of each host names the folder of the pool: berth host --pool-folder moves=/mnt/site/berth

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

variable "image_url" {
  type = string
}

variable "image_sha256" {
  type = string
}

variable "host" {
  type = string
}

variable "allow_reboot" {
  type    = bool
  default = false
}

variable "move_policy" {
  type    = string
  default = "WhenStopped"
}

resource "berth_storage_pool" "moves" {
  name = "moves"
  type = "Shared"
}

resource "berth_image" "base" {
  name   = "moves-base"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_disk" "root" {
  name  = "moves-root"
  image = berth_image.base.name
  size  = "10Gi"
  pool  = berth_storage_pool.moves.name
}

resource "berth_vm" "wiki" {
  name         = "moves-wiki"
  cpus         = 1
  memory       = "512Mi"
  disks        = [{ name = berth_disk.root.name, boot = true }]
  placement    = { host = var.host, move_policy = var.move_policy }
  allow_reboot = var.allow_reboot
}
