# Two VMs of one group: the database is started first, the web server once the database is ready. The group is a member of another one, for a
# whole site: `power` of that group stops all its VMs, in the reverse order.

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "system" {
  name = "vm-group"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_vm_class" "small" {
  name   = "vm-group"
  cpus   = 1
  memory = var.memory
}

resource "berth_vm_group" "site" {
  name  = "vm-group-site"
  power = var.power

  boot_order = [{ name = "applications", groups = ["vm-group"] }]
}

# The VMs refer to the group, and the group has their names as texts: it is created before them.
resource "berth_vm_group" "app" {
  name   = "vm-group"
  parent = berth_vm_group.site.name

  boot_order = [
    { name = "data", vms = ["vm-group-database"] },
    { name = "front", vms = ["vm-group-web"], power_on_delay_seconds = 2 },
  ]
}

resource "berth_disk" "root" {
  for_each = toset(["database", "web"])

  name  = "vm-group-${each.key}"
  size  = var.disk_size
  image = berth_image.system.name
}

resource "berth_vm" "member" {
  for_each = berth_disk.root

  name     = each.value.name
  class    = berth_vm_class.small.name
  disks    = [{ name = each.value.name, boot = true }]
  vm_group = berth_vm_group.app.name
}
