# An image from a file of the machine that runs Terraform: the apply uploads it to a host, and others copy it from there.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "built" {
  name    = "built-here"
  version = "1.0"
  os      = { family = "Linux", variant = "built-here", architecture = "x86_64" }
  source  = { file = var.image_file }
}

# Other configurations find it by what it has.
data "berth_image" "newest" {
  field_selector = "spec.os.family=Linux,spec.os.variant=built-here,spec.os.architecture=x86_64"
  latest_version = true

  depends_on = [berth_image.built]
}

resource "berth_disk" "root" {
  name  = "built-here-root"
  size  = "4Gi"
  image = berth_image.built.name
}

resource "berth_vm" "web" {
  name   = "built-here"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.root.name, boot = true }]
}

output "address" {
  value = berth_vm.web.private_address
}

# Computed from the file: other content is another image.
output "sha256" {
  value = berth_image.built.source.sha256
}

output "newest" {
  value = data.berth_image.newest.name
}
