resource "berth_disk" "root" {
  name  = "web-root"
  image = berth_image.debian.name
  size  = "4Gi"
}

resource "berth_disk" "data" {
  name            = "web-data"
  size            = "1Gi"
  deletion_policy = "Retain"
}

# Replaced by a disk that exists before this one is destroyed.
resource "berth_disk" "scratch" {
  name_prefix = "scratch-"
  size        = "10Gi"
  lifecycle {
    create_before_destroy = true
  }
}

# The space is reserved on the host, and the ceilings can be exceeded for half a minute.
resource "berth_disk" "fast" {
  name         = "fast"
  size         = "2Gi"
  provisioning = "Thick"
  limits = {
    iops            = 2000
    burst_iops      = 8000
    bandwidth       = "100Mi"
    burst_bandwidth = "400Mi"
    burst_seconds   = 30
  }
}

# Its file is made on a host of this zone.
resource "berth_disk" "zone_b" {
  name      = "zone-b-data"
  size      = "1Gi"
  placement = { host_selector = { "topology.kubernetes.io/zone" = "b" } }
}
