# Two VMs that depend on each other: after a boot of their host the database is started first, and before a shutdown of the host it is
# stopped last (docs/service.md).

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "system" {
  name = "power"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_vm_class" "small" {
  name   = "power"
  cpus   = 1
  memory = "512Mi"
}

resource "berth_disk" "root" {
  for_each = toset(["database", "web"])

  name  = "power-${each.key}"
  size  = "4Gi"
  image = berth_image.system.name
}

resource "berth_vm" "database" {
  name     = "power-database"
  class    = berth_vm_class.small.name
  disks    = [{ name = berth_disk.root["database"].name, boot = true }]
  wait_for = "guest"

  # A later change of the class does not reach it.
  class_policy = "Pin"

  # The other one is started five seconds after it.
  start_order         = 1
  start_delay_seconds = 5

  # It has two minutes to write its data when it is stopped, and is then powered off.
  stop           = { mode = "Graceful", grace_period_seconds = 120 }
  restart_policy = "Always"

  # Another text restarts it once.
  restart_token = var.restart_token

  # With this annotation it cannot be deleted, also not by terraform destroy. The provider needs the credentials of a gatekeeper.
  annotations = var.held == null ? null : { "delete.check.berth.dev/example" = var.held }
}

resource "berth_vm" "web" {
  name        = "power-web"
  class       = berth_vm_class.small.name
  disks       = [{ name = berth_disk.root["web"].name, boot = true }]
  wait_for    = "guest"
  start_order = 2
  power       = var.web_power

  # Memory: while its power is Suspended, the guest sleeps in the memory of its host. It needs a guest agent.
  suspend_mode = var.web_suspend_mode

  # Its host asks the guest to shut down, and powers it off only for a deletion, a drain or its own shutdown. A restart powers it off at once.
  stop         = { mode = "Soft" }
  restart_mode = "Hard"

  # With this annotation it is not started, whatever its power, for example while a backup program restores its disk.
  annotations = var.web_held == null ? null : { "poweron.check.berth.dev/example" = var.web_held }
}
