terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# Everybody reaches port 80 and may ping. Members send everything.
resource "berth_security_group" "web" {
  name = "web"

  ingress = [
    { name = "http", protocol = "tcp", ports = ["80"], cidrs = ["0.0.0.0/0"] },
    { name = "ping", protocol = "icmp", icmp_types = ["echo-request"], cidrs = ["0.0.0.0/0"] },
  ]
}

# Members of web reach everything, members of db each other. They open no connection to anything else.
resource "berth_security_group" "db" {
  name    = "db"
  ingress = [{ name = "members", security_groups = [berth_security_group.web.name, "db"] }]
  egress  = [{ name = "replication", protocol = "tcp", ports = ["5432"], security_groups = ["db"] }]
}

# The interfaces on this network that name no groups have the group db.
resource "berth_network" "database" {
  name            = "database"
  cidr            = "10.97.0.0/24"
  security_groups = [berth_security_group.db.name]
}

# An interface of a VM names its groups:
#   network_interfaces = [{ security_groups = ["db"] }]
output "groups" {
  value = [berth_security_group.web.name, berth_security_group.db.name]
}
