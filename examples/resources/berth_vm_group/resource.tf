# The database is started first, and the group of servers ten seconds after the database is ready.
resource "berth_vm_group" "webshop" {
  name = "webshop"

  boot_order = [
    { vms = ["webshop-database"] },
    { groups = ["webshop-servers"], power_on_delay_seconds = 10 },
  ]
}

resource "berth_vm_group" "servers" {
  name   = "webshop-servers"
  parent = berth_vm_group.webshop.name
}
