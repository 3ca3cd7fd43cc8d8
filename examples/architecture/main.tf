# A VM with processors of 64-bit ARM. A host of x86-64 runs it if its administrator lets it emulate them: berth host --emulate aarch64

terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "arm" {
  name   = "debian-12-arm"
  source = { url = var.image_url, sha256 = var.image_sha256 }
  # A VM of another architecture is not started from it.
  os = { family = "Linux", distribution = "debian", architecture = "aarch64" }
}

resource "berth_vm" "builder" {
  name         = "arm-builder"
  architecture = "aarch64"
  cpus         = 1
  memory       = "512Mi"

  disks = [
    { name = "arm-builder-root", boot = true, template = { image = berth_image.arm.name, size = "1Gi" } },
  ]

  wait_for = "guest"
}

output "address" {
  value = berth_vm.builder.private_address
}
