# A VM on encrypted disks. copy.tf has a snapshot of one of them, and a second VM on a copy. There are two classes of keys: after an apply with
# -var key_class=encryption-2 the second one protects the keys of the disks, and the VMs run on meanwhile.
#
# The keys of the classes are in Secrets, which Terraform does not read. Without them no disk can be opened any more, so keep them in another
# place too:
#
#   kubectl create secret generic encryption-1 --from-literal=key="$(openssl rand -base64 32)"
#   kubectl create secret generic encryption-2 --from-literal=key="$(openssl rand -base64 32)"

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_key_class" "first" {
  name   = "encryption-1"
  secret = { name = "encryption-1" }
}

resource "berth_key_class" "second" {
  name   = "encryption-2"
  secret = { name = "encryption-2" }
}

locals {
  classes = {
    encryption-1 = berth_key_class.first.name
    encryption-2 = berth_key_class.second.name
  }
}

resource "berth_image" "server" {
  name = "encryption"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

# The data that the guest writes is encrypted; the image below is shared by all disks that are made from it, and is not.
resource "berth_disk" "root" {
  name       = "encryption-root"
  size       = "4Gi"
  image      = berth_image.server.name
  encryption = { key_class = local.classes[var.key_class] }
}

resource "berth_disk" "data" {
  name       = "encryption-data"
  size       = "1Gi"
  encryption = { key_class = local.classes[var.key_class] }
}

resource "berth_vm" "server" {
  name   = "encryption"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = berth_disk.root.name, boot = true },
    { name = berth_disk.data.name },
  ]
}

output "address" {
  value = berth_vm.server.private_address
}
