resource "berth_quota" "team" {
  name      = "team"
  namespace = "team-a"

  hard = {
    disk_size  = "500Gi"
    memory     = "64Gi"
    cpus       = 32
    vms        = 20
    snapshots  = 100
    public_ips = 4
  }
}
