resource "berth_snapshot_schedule" "nightly" {
  name      = "nightly"
  schedule  = "0 3 * * *"
  time_zone = "Europe/Stockholm"
  vms       = ["web-1", "web-2"]

  keep = {
    last    = 3
    daily   = 7
    weekly  = 4
    monthly = 6
  }
}

# Each night one snapshot on the host, and a backup of each disk elsewhere.
resource "berth_snapshot_schedule" "offsite" {
  name     = "offsite"
  schedule = "0 2 * * *"
  vms      = ["db"]
  keep     = { last = 1 }

  backup = {
    repository = "offsite"
    keep       = { daily = 14, weekly = 8, monthly = 12 }
  }
}

# All VMs with a label, each hour.
resource "berth_snapshot_schedule" "hourly" {
  name        = "hourly"
  schedule    = "@hourly"
  vm_selector = { snapshots = "hourly" }
  keep        = { hourly = 12 }
}
