# A VM whose image reads Ignition in place of cloud-init, such as Fedora CoreOS or Flatcar. Ignition has its own users, passwords and
# keys: attributes for them are refused beside it. The configuration is in no plan and no state; a higher version stores another one.

resource "berth_disk" "ignition" {
  name  = "bootstrap-ignition-root"
  size  = "4Gi"
  image = berth_image.guest.name
}

resource "berth_vm" "ignition" {
  name   = "bootstrap-ignition"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.ignition.name, boot = true }]

  bootstrap = {
    user_data_wo = jsonencode({
      ignition = { version = "3.4.0" }
      storage = {
        files = [{ path = "/etc/hostname", mode = 420, contents = { source = "data:,ignition" } }]
      }
    })
    user_data_wo_version = 1
  }
}
