# Addresses on the network segment that the hosts are on.
resource "berth_ip_pool" "segment" {
  name  = "segment"
  mode  = "l2"
  cidrs = ["192.0.2.64/27"]
}

resource "berth_public_ip" "mail" {
  name = "mail"
  pool = berth_ip_pool.segment.name
}
