# A database in huge pages, on CPUs of its own, whose guest sees two NUMA nodes. An administrator has reserved the pages on a host
# (sysctl vm.nr_hugepages=2048), and its agent runs with --dedicated-cpus 2-4.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "database" {
  name = "performance"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "performance-root"
  size  = "8Gi"
  image = berth_image.database.name
}

resource "berth_vm_class" "fast" {
  name       = "fast"
  cpus       = 2
  memory     = "4Gi"
  huge_pages = "2Mi"

  # Three CPUs of the host: one for each CPU, and one for QEMU's other threads.
  dedicated_cpu_placement = true
  isolate_emulator_thread = true

  # A thread of QEMU for the disk below.
  io_threads_policy = "PerDisk"

  # One CPU and 2 GiB each. On a host with several nodes, each is on one of them where possible.
  numa_nodes = 2
}

resource "berth_vm" "database" {
  name  = "performance"
  class = berth_vm_class.fast.name
  disks = [{ name = berth_disk.root.name, boot = true, bus = "virtio-blk" }]
}

output "address" {
  value = berth_vm.database.private_address
}

data "berth_vm" "database" {
  name       = berth_vm.database.name
  depends_on = [berth_vm.database]
}

# The engine for its disks' I/O, whether the host's kernel moves its packets, and more.
output "facts" {
  value = data.berth_vm.database.status.facts
}
