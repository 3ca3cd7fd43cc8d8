# All disks of the VM are backed up each night, of one moment. The backups are not in Terraform's state: `kubectl get backups -l
# berth.dev/snapshot-schedule=backup` lists them, and a disk is made from one by its name. Destroying the schedule keeps them.
resource "berth_snapshot_schedule" "nightly" {
  name     = "backup"
  schedule = var.schedule
  vms      = [berth_vm.server.name]

  # Snapshots on the host: the last one is enough for the next backup to read only what has changed.
  keep = { last = 1 }

  backup = {
    repository = berth_backup_repository.backups.name
    keep       = { daily = 14, weekly = 8, monthly = 12 }
  }
}

# A disk that no VM has: a schedule of Disks takes a snapshot of it and backs it up.
resource "berth_snapshot_schedule" "archive" {
  name          = "archive"
  schedule      = "0 4 * * SUN"
  disk_selector = { backup = "weekly" }

  keep = { last = 1 }

  backup = {
    repository = berth_backup_repository.backups.name
    keep       = { weekly = 8 }
  }
}
