resource "berth_disk_snapshot" "today" {
  name = "data-2026-01-02"
  disk = "data"
}

resource "berth_backup" "today" {
  name       = "data-2026-01-02"
  repository = berth_backup_repository.offsite.name
  snapshot   = berth_disk_snapshot.today.name
}

# A new disk with its data, on any host.
resource "berth_disk" "restored" {
  name   = "data-restored"
  source = { backup = berth_backup.today.name }
}

# A backup of a site that is gone. Destroying it keeps the data.
resource "berth_backup" "former" {
  name            = "former-data"
  repository      = berth_backup_repository.offsite.name
  existing        = "v-0123456789abcdef/b-7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c"
  deletion_policy = "Retain"
}
