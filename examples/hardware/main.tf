# The hardware that a guest sees: cards, chipset and processor, serial ports, a watchdog, a drive with tools, and their boot order.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "system" {
  name   = "hardware-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_image" "tools" {
  name   = "hardware-tools"
  format = "iso"
  source = { url = var.iso_url, sha256 = var.iso_sha256 }
}

# Smaller packets, for a path with a tunnel. Guests get the size by DHCP.
resource "berth_network" "plant" {
  name = "hardware"
  cidr = "10.97.0.0/24"
  mtu  = 1400
}

# Properties of QEMU that have no attribute: here, the kernel of the host merges no memory of these VMs with that of others (KSM).
resource "berth_vm_class" "plant" {
  name         = "hardware"
  cpus         = 2
  memory       = "512Mi"
  qemu_options = [{ name = "machine.mem-merge", value = "off" }]
}

resource "berth_vm" "controller" {
  name  = "hardware"
  class = berth_vm_class.plant.name

  # The same processor on every host that has this level, and the chipset of a version of QEMU that the host has.
  cpu_model    = "x86-64-v2"
  machine_type = var.machine_type

  # A licence is bound to the serial number.
  serial_number = "ACME-4711"

  # The guest is reset when it no longer resets the timer.
  watchdog     = var.watchdog
  serial_ports = 2
  sound        = true

  disks = [{ name = "hardware-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]

  # The guest cannot eject the medium. With boot_first the VM starts from it, as for a repair.
  cdroms = [{
    name            = "tools"
    image           = berth_image.tools.name
    guest_can_eject = false
    boot_first      = var.repair
  }]
  boot_order = ["Disk", "Cdrom"]

  network_interfaces = [
    # A pair of queues for each CPU; QEMU moves the packets, and not the kernel of the host.
    { name = "fast", network = berth_network.plant.name, queues = 2, acceleration = "Off" },
    # For a program that knows this card only. Its gateway is not a second default route.
    { name = "legacy", network = berth_network.plant.name, model = "e1000e", default_route = false },
  ]

  wait_for = "guest"
}

output "address" {
  value = berth_vm.controller.private_address
}

output "mtus" {
  value = berth_vm.controller.mtus
}
