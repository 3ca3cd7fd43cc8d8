# A namespace with images that other namespaces use. Its owner decides which ones; a namespace that is not in the list learns
# nothing of an image, not even that there is one.

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "original" {
  name        = "library-debian"
  namespace   = var.library
  owner       = "Platform team"
  shared_with = [var.team]
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

# In the namespace of a team: the same content under a name of its own, without a further download.
resource "berth_image" "debian" {
  name      = "team-debian"
  namespace = var.team
  source = {
    image           = berth_image.original.name
    image_namespace = berth_image.original.namespace
  }
}

resource "berth_disk" "root" {
  name      = "team-root"
  namespace = var.team
  image     = berth_image.debian.name
  size      = "4Gi"
}
