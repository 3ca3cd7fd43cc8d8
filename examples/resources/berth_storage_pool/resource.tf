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
