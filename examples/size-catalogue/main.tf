# Sizes that VMs of all namespaces share, as series: an administrator declares them once, and a VM names one, for example
# class = "general-2". A class that a namespace has under the same name comes before it there.

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

locals {
  # GiB of memory for each CPU.
  series = {
    compute = { memory = 2, cpus = [1, 2, 4, 8] }
    general = { memory = 4, cpus = [1, 2, 4, 8] }
    memory  = { memory = 8, cpus = [2, 4, 8] }
  }

  sizes = merge([
    for series, of in local.series : {
      for cpus in of.cpus : "${series}-${cpus}" => {
        series = series
        cpus   = cpus
        memory = "${cpus * of.memory}Gi"
      }
    }
  ]...)
}

resource "berth_vm_class" "size" {
  for_each = local.sizes

  namespace = "berth-shared"
  name      = each.key
  labels    = { series = each.value.series }
  cpus      = each.value.cpus
  memory    = each.value.memory
}

# For systems without virtio drivers: the cards of its VMs that declare no model.
resource "berth_vm_class" "legacy" {
  namespace               = "berth-shared"
  name                    = "legacy"
  cpus                    = 1
  memory                  = "1Gi"
  firmware                = "BIOS"
  network_interface_model = "e1000"
}

# Users see the catalogue in this way, without its configuration.
data "berth_vm_classes" "general" {
  namespace      = "berth-shared"
  label_selector = "series=general"

  depends_on = [berth_vm_class.size]
}

output "general" {
  value = { for class in data.berth_vm_classes.general.vm_classes : class.name => "${class.cpus} CPUs, ${class.memory}" }
}
