terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# One address for several VMs: connections to port 80 go in turn to each that answers its health check, whichever host it is on.
resource "berth_public_ip" "balancer" {
  name = "balancer"
  pool = var.pool

  ports = [
    {
      name         = "http"
      port         = 80
      targets      = var.targets
      health_check = { path = "/", interval = "2s", healthy_threshold = 1, unhealthy_threshold = 2 }
    },
    # The same VMs; a client stays with its VM.
    {
      name             = "sessions"
      port             = 8080
      target_port      = 80
      targets          = var.targets
      session_affinity = "ClientIP"
      health_check     = {}
    },
    # The first VM alone. Without `port` the controllers give out a free one, which the entry keeps.
    {
      name        = "direct"
      target_port = 80
      targets     = slice(var.targets, 0, 1)
    },
  ]
}

output "address" {
  value = berth_public_ip.balancer.address
}

output "direct" {
  value = "${berth_public_ip.balancer.address}:${berth_public_ip.balancer.assigned_ports["direct"]}"
}
