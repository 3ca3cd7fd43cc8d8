# One site that uses every module of this folder.

terraform {
  required_version = ">= 1.7"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_vm_class" "small" {
  name     = "small"
  cpus     = 1
  memory   = var.memory
  firmware = var.firmware
}

resource "berth_image" "debian" {
  name   = "debian-12"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

module "app" {
  source    = "./single-vm"
  name      = "app"
  cpus      = 1
  memory    = var.memory
  firmware  = var.firmware
  image     = berth_image.debian.name
  disk_size = var.disk_size
  public    = true
}

module "api" {
  source      = "./ha-group"
  name        = "api"
  replicas    = 2
  enforcement = "preferred"
  class       = berth_vm_class.small.name
  image       = berth_image.debian.name
  disk_size   = var.disk_size
}

module "orders" {
  source    = "./database"
  name      = "orders"
  class     = berth_vm_class.small.name
  image     = berth_image.debian.name
  disk_size = var.disk_size
  data_size = var.disk_size
  protected = var.protected
}

module "www" {
  source    = "./public-web"
  name      = "www"
  class     = berth_vm_class.small.name
  image     = berth_image.debian.name
  disk_size = var.disk_size
  user_data = var.web_user_data
}

module "course" {
  source    = "./student-machines"
  course    = "linux"
  cidr      = "10.90.0.0/24"
  students  = var.students
  class     = berth_vm_class.small.name
  image     = berth_image.debian.name
  disk_size = var.disk_size
}
