terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

variable "turn" {
  default = "1"
}

resource "terraform_data" "turn" {
  input = var.turn
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}

resource "berth_disk" "root" {
  name_prefix = "web-root-"
  size        = "1Gi"
  lifecycle {
    create_before_destroy = true
    replace_triggered_by  = [terraform_data.turn]
  }
}

resource "berth_vm" "web" {
  name_prefix = "web-"
  class       = berth_vm_class.small.name
  disks       = [{ name = berth_disk.root.name, boot = true }]
  bootstrap = {
    user_data        = "#!/bin/sh\necho ${var.turn}\n"
    user_data_policy = "replace"
  }
  lifecycle {
    create_before_destroy = true
  }
}

output "vm" {
  value = berth_vm.web.name
}
