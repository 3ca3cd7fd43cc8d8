resource "berth_host" "h2" {
  name     = "h2"
  labels   = { "topology.kubernetes.io/zone" = "b", disk = "ssd" }
  cordoned = false
  reserved = { cpus = 1, memory = "2Gi" }
}
