resource "berth_network" "backend" {
  name = "backend"
  cidr = "10.80.0.0/24"
}

resource "berth_disk" "database" {
  name  = "database-root"
  image = berth_image.debian.name
  size  = "10Gi"
}

resource "berth_vm" "database" {
  name               = "database"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.database.name, boot = true }]
  network_interfaces = [{ network = berth_network.backend.name }]
}
