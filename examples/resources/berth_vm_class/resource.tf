resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}
