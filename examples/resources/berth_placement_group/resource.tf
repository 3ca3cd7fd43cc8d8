resource "berth_placement_group" "web" {
  name     = "web"
  strategy = "spread"
}

# Its members are on hosts of one zone, if possible on those with fast disks.
resource "berth_placement_group" "zone_b" {
  name                    = "zone-b"
  strategy                = "spread"
  enforcement             = "preferred"
  host_selector           = { "topology.kubernetes.io/zone" = "b" }
  preferred_host_selector = { disk = "nvme" }
}
