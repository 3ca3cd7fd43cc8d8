output "image" {
  value = {
    name         = data.berth_image.newest.name
    version      = data.berth_image.newest.version
    virtual_size = data.berth_image.newest.virtual_size
    state        = data.berth_image.newest.state
  }
}

# For a check after the apply: the conditions say why something is not as declared.
output "vm" {
  value = {
    state      = data.berth_vm.web.status.state
    conditions = { for type, condition in data.berth_vm.web.status.conditions : type => "${condition.status}: ${condition.reason}" }
    waiting    = data.berth_vm.web.status.pending_power_cycle
    cpu_model  = data.berth_vm.web.status.hardware.cpu_model
  }
}

# The addresses that berth gave, and what the guest reports by its agent: without an agent there is nothing.
output "network" {
  value = {
    address = data.berth_vm.web.status.interfaces["nic0"].address
    mac     = data.berth_vm.web.status.interfaces["nic0"].mac_address
    guest   = try(data.berth_vm.web.status.guest.addresses, [])
    system  = try(data.berth_vm.web.status.guest.os, null)
  }
}

output "disk" {
  value = {
    state  = data.berth_disk.root.state
    serial = data.berth_disk.root.serial
    host   = data.berth_disk.root.host
    pool   = data.berth_storage_pool.of_the_disk.name
    free   = data.berth_storage_pool.of_the_disk.status.free
  }
}

# Room on the host: of the machine, for VMs, and what is left.
output "host" {
  value = {
    name        = data.berth_host.of_the_vm.name
    accelerator = data.berth_host.of_the_vm.status.accelerator
    cpus        = data.berth_host.of_the_vm.status.capacity.cpus
    for_vms     = data.berth_host.of_the_vm.status.allocatable.memory
    free        = data.berth_host.of_the_vm.status.free.memory
  }
}

output "site" {
  value = {
    hosts = data.berth_hosts.ready.hosts[*].name
    vms   = data.berth_vms.team.vms[*].name
  }
}
