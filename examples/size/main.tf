# The size of a VM: one that gets more CPUs and memory while it runs, within its maxima, and one whose CPUs are in two sockets.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "system" {
  name   = "size-system"
  source = { url = var.image_url, sha256 = var.image_sha256 }
}

resource "berth_vm" "growing" {
  name = "size-growing"

  # Another value of these two reaches the running guest at once, up to the maxima. The maxima change at the next power cycle.
  cpus       = var.cpus
  max_cpus   = 3
  memory     = var.memory
  max_memory = "1Gi"

  # Its host keeps half a CPU and 256 MiB for it, and takes VMs as long as what it keeps for all of them fits.
  cpu_reservation    = 0.5
  memory_reservation = "256Mi"

  # At most 1.5 CPUs of the host, and twice the share of others when the host has too little for all.
  cpu_limit  = var.cpu_limit
  cpu_weight = 200

  disks    = [{ name = "size-growing-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  wait_for = "guest"
}

# Without cpus, it has as many as the topology: two. Some licences count sockets.
resource "berth_vm" "sockets" {
  name         = "size-sockets"
  cpu_topology = { sockets = 2, cores = 1, threads = 1 }
  memory       = "512Mi"
  disks        = [{ name = "size-sockets-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } }]
  wait_for     = "guest"
}

output "address" {
  value = berth_vm.growing.private_address
}

output "sockets_address" {
  value = berth_vm.sockets.private_address
}

# Changes that wait for the next power cycle, for example a memory above max_memory.
output "waiting" {
  value = berth_vm.growing.pending_power_cycle
}
