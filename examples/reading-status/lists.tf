# Lists: all objects of a kind in the namespace, or with label_selector, field_selector and ready only some of them.

data "berth_backups" "all" {
  depends_on = [berth_vm.web]
}

data "berth_backup_repositories" "all" {
  depends_on = [berth_vm.web]
}

data "berth_disks" "all" {
  depends_on = [berth_vm.web]
}

data "berth_disk_snapshots" "all" {
  depends_on = [berth_vm.web]
}

data "berth_hotswap_disk_attachments" "all" {
  depends_on = [berth_vm.web]
}

data "berth_images" "all" {
  depends_on = [berth_vm.web]
}

data "berth_ip_pools" "all" {
  depends_on = [berth_vm.web]
}

data "berth_key_classes" "all" {
  depends_on = [berth_vm.web]
}

data "berth_networks" "all" {
  depends_on = [berth_vm.web]
}

data "berth_placement_groups" "all" {
  depends_on = [berth_vm.web]
}

data "berth_public_ips" "all" {
  depends_on = [berth_vm.web]
}

data "berth_quotas" "all" {
  depends_on = [berth_vm.web]
}

data "berth_security_groups" "all" {
  depends_on = [berth_vm.web]
}

data "berth_snapshot_schedules" "all" {
  depends_on = [berth_vm.web]
}

data "berth_storage_pools" "all" {
  depends_on = [berth_vm.web]
}

data "berth_vm_classes" "all" {
  depends_on = [berth_vm.web]
}

data "berth_vm_groups" "all" {
  depends_on = [berth_vm.web]
}

data "berth_vm_snapshots" "all" {
  depends_on = [berth_vm.web]
}

output "numbers" {
  value = {
    backups                  = length(data.berth_backups.all.backups)
    backup_repositories      = length(data.berth_backup_repositories.all.backup_repositories)
    disks                    = length(data.berth_disks.all.disks)
    disk_snapshots           = length(data.berth_disk_snapshots.all.disk_snapshots)
    hotswap_disk_attachments = length(data.berth_hotswap_disk_attachments.all.hotswap_disk_attachments)
    images                   = length(data.berth_images.all.images)
    ip_pools                 = length(data.berth_ip_pools.all.ip_pools)
    key_classes              = length(data.berth_key_classes.all.key_classes)
    networks                 = length(data.berth_networks.all.networks)
    placement_groups         = length(data.berth_placement_groups.all.placement_groups)
    public_ips               = length(data.berth_public_ips.all.public_ips)
    quotas                   = length(data.berth_quotas.all.quotas)
    security_groups          = length(data.berth_security_groups.all.security_groups)
    snapshot_schedules       = length(data.berth_snapshot_schedules.all.snapshot_schedules)
    storage_pools            = length(data.berth_storage_pools.all.storage_pools)
    vm_classes               = length(data.berth_vm_classes.all.vm_classes)
    vm_groups                = length(data.berth_vm_groups.all.vm_groups)
    vm_snapshots             = length(data.berth_vm_snapshots.all.vm_snapshots)
  }
}

# The network of the VM, which berth makes when the first VM needs it, and the pool of public addresses.
data "berth_network" "default" {
  name       = "default"
  depends_on = [berth_vm.web]
}

data "berth_ip_pool" "default" {
  name = "default"
}

output "default_network" {
  value = {
    cidr                  = data.berth_network.default.cidr
    mtu                   = data.berth_network.default.status.mtu
    free_public_addresses = data.berth_ip_pool.default.status.free
  }
}
