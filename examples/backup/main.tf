# A VM with a disk for its data, and a backup of that disk. restore.tf has a new disk that is made from the backup, and a second VM on it;
# schedule.tf, backups of all disks of the first VM each night.
#
# The password of the backups is in a Secret; without it none can be restored, so keep it in another place too:
#
#   kubectl create secret generic backup-password --from-literal=password="$(openssl rand -base64 32)"
#
# By default the repository is in a folder of the hosts, which their administrator offers: berth up --backup-folder nas=/mnt/nas
#
# With an object store its credentials are in another Secret:
#
#   kubectl create secret generic s3-login --from-literal=accessKeyID=… --from-literal=secretAccessKey=…
#   terraform apply -var 's3={endpoint="https://s3.eu-north-1.amazonaws.com", region="eu-north-1", bucket="example-backups"}'

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "server" {
  name = "backup"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "backup-root"
  size  = "4Gi"
  image = berth_image.server.name
}

resource "berth_disk" "data" {
  name = "backup-data"
  size = "1Gi"
}

resource "berth_vm" "server" {
  name   = "backup"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
}

# Where the backups of this namespace are. Its location cannot change; its Secrets can.
resource "berth_backup_repository" "backups" {
  name                    = "backups"
  folder                  = var.s3 == null ? var.folder : null
  s3                      = var.s3
  credentials_secret_name = var.s3 == null ? null : var.credentials_secret
  password_secret_name    = var.password_secret

  # Each backup is read back once it is complete, and again every 30 days: berth_backup.data.damaged_blocks and `kubectl get bkp` have the result.
  verification = {
    interval_days = 30
  }
}

# A backup has the data of a snapshot, so that it is of one moment while the VM runs on.
resource "berth_disk_snapshot" "data" {
  name = "backup-data-1"
  disk = berth_disk.data.name

  # The disk has a file once its VM has been started.
  depends_on = [berth_vm.server]
}

# The apply waits until it is complete. The next backup of the disk reads and stores only what has changed, if this snapshot still exists then.
resource "berth_backup" "data" {
  name       = "backup-data-1"
  repository = berth_backup_repository.backups.name
  snapshot   = berth_disk_snapshot.data.name
}

output "address" {
  value = berth_vm.server.private_address
}

# What another site with the same repository declares as `existing` to restore it.
output "existing" {
  value = "${berth_backup.data.volume_id}/${berth_backup.data.backup_id}"
}

output "stored_bytes" {
  value = berth_backup.data.stored_bytes
}
