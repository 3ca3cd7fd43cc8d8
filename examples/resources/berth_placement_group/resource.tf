resource "berth_placement_group" "web" {
  name     = "web"
  strategy = "spread"
}
