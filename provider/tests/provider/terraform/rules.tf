terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

variable "size" {
  default = "2Gi"
}

variable "script" {
  default = "#!/bin/sh\n"
}

variable "turn" {
  default = 1
}

# Replaced with each turn: until then its output is unknown, and afterwards it is what it was.
resource "terraform_data" "upstream" {
  input            = var.script
  triggers_replace = var.turn
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}

resource "berth_disk" "root" {
  name = "root"
  size = var.size
}

module "machine" {
  source    = "./machine"
  class     = berth_vm_class.small.name
  disk      = berth_disk.root.name
  user_data = terraform_data.upstream.output
}

resource "berth_disk" "other" {
  name = "other"
  size = "1Gi"
}

# Nothing but nulls are passed on here.
module "plain" {
  source = "./machine"
  name   = "plain"
  class  = berth_vm_class.small.name
  disk   = berth_disk.other.name
}

output "address" {
  value = module.plain.address
}
