# A disk in a folder that several hosts mount. The administrator of each host names it: berth host --pool-folder site=/mnt/site/berth

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_storage_pool" "site" {
  name               = "site"
  type               = "Shared"
  overcommit_percent = 200
}

# The host of its first VM makes it.
resource "berth_disk" "ledger" {
  name = "site-ledger"
  size = "1Gi"
  pool = berth_storage_pool.site.name
}

# Null until the host of its first VM has made it.
output "ledger_survives_host_loss" {
  value = berth_disk.ledger.survives_host_loss
}
