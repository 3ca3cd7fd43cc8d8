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
