# A VM that boots only what is signed with keys of your own, which are in a Secret:
#
#   openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=our PK"  -keyout PK.key  -out PK.pem      # likewise KEK and db
#   kubectl create secret generic boot-keys --from-file=PK=PK.pem --from-file=KEK=KEK.pem --from-file=db=db.pem

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_image" "guest" {
  name = "secure-boot"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name  = "secure-boot-root"
  size  = "4Gi"
  image = berth_image.guest.name
}

resource "berth_vm" "guest" {
  name     = "secure-boot"
  cpus     = 1
  memory   = "1Gi"
  firmware = "UEFISecureBoot"
  # Another value, such as the date of new keys, enrolls what the Secret has then.
  secure_boot_keys = { secret_name = var.keys_secret, token = var.keys_token }
  tpm              = true
  disks            = [{ name = berth_disk.root.name, boot = true }]
  allow_reboot     = true
}

output "address" {
  value = berth_vm.guest.private_address
}
