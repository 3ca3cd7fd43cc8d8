resource "berth_vm" "web" {
  name               = "web"
  class              = berth_vm_class.small.name
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.web.name }]
  placement          = { group = berth_placement_group.web.name }
  bootstrap = {
    ssh_authorized_keys = [file("id.pub")]
    user_data           = file("cloud-init.yaml")
  }
  power    = "Running"
  wait_for = "guest"
  timeouts {
    create = "10m"
  }
}

output "addresses" {
  value = flatten(values(berth_vm.web.addresses))
}
