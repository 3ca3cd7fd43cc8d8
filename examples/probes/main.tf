# A web server that is ready once it answers, is restarted when it no longer does, has a snapshot from before each stop, and starts before
# other VMs of its host.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "server" {
  name = "probes"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "probes-root"
  size  = "4Gi"
  image = berth_image.server.name
}

resource "berth_vm" "server" {
  name   = "probes"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.root.name, boot = true }]

  # The apply waits until it succeeds.
  readiness_probe = {
    http_get          = { port = 80, path = "/" }
    period_seconds    = 2
    failure_threshold = 3
    success_threshold = 1
  }

  # Two minutes to boot, and then a restart after 30 seconds without a connection.
  liveness_probe = {
    tcp_socket            = { port = 80 }
    initial_delay_seconds = 120
    timeout_seconds       = 5
  }

  # Called once after each start, as soon as the server answers. Before each stop a snapshot is taken, and the last two are kept, also
  # when the VM is destroyed: kubectl get vmsnap -l berth.dev/stopped-vm=probes
  hooks = {
    post_start = { http_get = { port = 80, path = "/" }, timeout_seconds = 120, failure_policy = "Fail" }
    pre_stop   = { snapshot = { keep = 2 } }
  }

  # After a boot of the host: VMs without an order start 10 seconds after this one.
  start_order         = 1
  start_delay_seconds = 10
}

output "address" {
  value = berth_vm.server.private_address
}
