# Limits of a namespace, and a disk within them. The namespace exists: kubectl create namespace team-a
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {
  namespace = var.namespace
}

# Written by an administrator; users of the namespace read it.
resource "berth_quota" "team" {
  name = "team"

  hard = {
    disk_size      = "100Gi"
    used_storage   = "60Gi"
    image_storage  = "40Gi"
    backup_storage = "200Gi"
    memory         = "16Gi"
    cpus           = 8
    vms            = 4
    snapshots      = 20
    images         = 10
    backups        = 60
    public_ips     = 2
  }
}

resource "berth_disk" "data" {
  name = "data"
  size = var.disk_size

  depends_on = [berth_quota.team]
}
