# The part of an administrator: the classes that namespace team-c is offered (namespace.yaml), and a host for its VMs alone.
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# In berth-shared, where all namespaces find them and only administrators write.
resource "berth_vm_class" "office" {
  for_each = {
    office       = { cpus = 2, memory = "4Gi" }
    office-large = { cpus = 4, memory = "16Gi" }
  }

  name      = each.key
  namespace = "berth-shared"
  cpus      = each.value.cpus
  memory    = each.value.memory
}

resource "berth_host" "reserved" {
  name       = var.host
  namespaces = ["team-c"]
  labels     = { reserved = "team-c" }
}

# The part of the team, as a rule in a configuration of its own with its own credentials.
resource "berth_disk" "desk" {
  name      = "desk"
  namespace = "team-c"
  size      = "20Gi"
}

resource "berth_vm" "desk" {
  name      = "desk"
  namespace = "team-c"
  class     = berth_vm_class.office["office"].name
  disks     = [{ name = berth_disk.desk.name, boot = true }]
  # Without it the VM may also be on hosts that are reserved for no namespace.
  placement = { host_selector = berth_host.reserved.labels }
}
