resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"

  # Of each disk that has no limits itself.
  disk_limits = {
    iops      = 500
    bandwidth = "50Mi"
  }
}
