# A pool on fast drives. Hosts that have some name the folder: berth host --pool-folder fast=/mnt/nvme/berth. Disks of it may be promised
# twice the space that there is.
resource "berth_storage_pool" "fast" {
  name               = "fast"
  overcommit_percent = 200
}

# The files of deleted disks stay in the trash for a week.
resource "berth_storage_pool" "databases" {
  name                    = "databases"
  trash_retention_seconds = 604800
}

resource "berth_disk" "orders" {
  name = "orders"
  size = "10Gi"
  pool = berth_storage_pool.databases.name
}
