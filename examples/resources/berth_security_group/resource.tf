resource "berth_security_group" "web" {
  name = "web"

  ingress = [
    { name = "https", protocol = "tcp", ports = ["80", "443"], cidrs = ["0.0.0.0/0"] },
    { name = "ssh", protocol = "tcp", ports = ["22"], security_groups = ["bastion"] },
    { name = "ping", protocol = "icmp", cidrs = ["0.0.0.0/0"] },
  ]
}

# Members reach each other, and nothing else reaches them. They send nothing to the outside.
resource "berth_security_group" "db" {
  name    = "db"
  ingress = [{ security_groups = ["db", "web"] }]
  egress  = [{ security_groups = ["db"] }]
}
