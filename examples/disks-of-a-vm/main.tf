# A VM with disks of its own, from an image that a server gives to those with a password, and with limits for its traffic.

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

# kubectl create secret generic images-login --from-literal=username=… --from-literal=password=…
resource "berth_image" "golden" {
  name = "golden"
  source = {
    url         = var.image_url
    sha256      = var.image_sha256
    secret_name = var.image_secret
  }
}

resource "berth_vm" "shop" {
  name   = "shop"
  cpus   = 1
  memory = "512Mi"

  # Created with the VM, and deleted after it.
  disks = [
    { name = "shop-root", boot = true, template = { image = berth_image.golden.name, size = var.root_size } },
    { name = "shop-data", template = { size = "1Gi", limits = { iops = 500 } } },
  ]

  network_interfaces = [{
    limits = { ingress_bandwidth = "100M", egress_bandwidth = var.egress }
  }]

  wait_for = "guest"
}

output "address" {
  value = berth_vm.shop.private_address
}
