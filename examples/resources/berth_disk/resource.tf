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
