resource "berth_image" "debian" {
  name = "debian-12"
  source = {
    url    = "https://example.org/debian-12-generic-amd64.qcow2"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
  }
}

resource "berth_image" "pinned_by_its_publisher" {
  name = "debian-13"
  source = {
    url          = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-generic-amd64.qcow2"
    checksum_url = "https://cloud.debian.org/images/cloud/trixie/latest/SHA512SUMS"
  }
}

resource "berth_image" "appliance" {
  name        = "appliance-4-2"
  format      = "vmdk"
  compression = "xz"
  source = {
    url    = "https://downloads.example.org/appliance-4.2.vmdk.xz"
    sha256 = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
  }
}

# Uploaded from the machine that runs Terraform.
resource "berth_image" "built" {
  name   = "built-here"
  source = { file = "build/disk.qcow2" }
}
