resource "berth_vm" "batch" {
  name  = "batch"
  class = "small"
  disks = [{ name = "batch", boot = true }]

  lifecycle {
    # The actions below start and stop it.
    ignore_changes = [power]
  }
}

action "berth_vm_power" "stop" {
  config {
    name            = berth_vm.batch.name
    power           = "Stopped"
    force_conflicts = true
  }
}

action "berth_vm_power" "start" {
  config {
    name            = berth_vm.batch.name
    power           = "Running"
    force_conflicts = true
  }
}
