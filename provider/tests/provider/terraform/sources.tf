terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

variable "selector" {
  default = "tier=web"
}

variable "host" {
  default = "h1"
}

resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 2
  memory = "512Mi"
  labels = { tier = "web" }
}

resource "berth_network" "backend" {
  name = "backend"
  cidr = "10.80.0.0/24"
}

resource "berth_storage_pool" "fast" {
  name = "fast"
}

resource "berth_host" "h1" {
  name   = "h1"
  labels = { rack = "7" }
}

# Its output is unknown until it exists.
resource "terraform_data" "class" {
  input = berth_vm_class.small.name
}

data "berth_vm_class" "small" {
  name = terraform_data.class.output
}

data "berth_vm_classes" "web" {
  label_selector = var.selector
  ready          = true
  depends_on     = [berth_vm_class.small]
}

data "berth_host" "one" {
  name = var.host
}

resource "berth_disk" "root" {
  name = "root"
  size = "1Gi"
  pool = berth_storage_pool.fast.name
}

resource "berth_vm" "web" {
  name               = "web"
  class              = data.berth_vm_class.small.name
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ network = berth_network.backend.name }]
}

data "berth_vm" "web" {
  name       = "web"
  depends_on = [berth_vm.web]
}

output "class_cpus" {
  value = data.berth_vm_class.small.cpus
}

output "classes" {
  value = data.berth_vm_classes.web.vm_classes[*].name
}

output "host_memory" {
  value = data.berth_host.one.status.capacity.memory
}

output "address" {
  value = data.berth_vm.web.status.interfaces["nic0"].address
}

output "first" {
  value = data.berth_vm.web.addresses["nic0"][0]
}
