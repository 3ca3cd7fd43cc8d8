terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

variable "name" {
  default = "machine"
}

variable "class" {}

variable "disk" {}

variable "user_data" {
  type    = string
  default = null
}

variable "secret_name" {
  type    = string
  default = null
}

resource "berth_vm" "this" {
  name  = var.name
  class = var.class
  disks = [{ name = var.disk, boot = true }]
  bootstrap = {
    user_data   = var.user_data
    secret_name = var.secret_name
  }
  wait_for = "none"
}

output "address" {
  value = berth_vm.this.private_address
}
