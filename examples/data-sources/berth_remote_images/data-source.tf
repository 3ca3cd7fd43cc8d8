data "berth_remote_images" "trixie" {
  url         = "https://cloud.debian.org/images/cloud/trixie/latest/SHA512SUMS"
  name_filter = "debian-13-generic-*.qcow2"
}

resource "berth_image" "of_the_server" {
  for_each = { for image in data.berth_remote_images.trixie.images : image.name => image }
  name     = trimsuffix(each.key, ".qcow2")
  source   = { url = each.value.url, sha256 = each.value.sha256, sha512 = each.value.sha512 }
}

# The tags of a repository in a container registry.
data "berth_remote_images" "releases" {
  url         = "oci://registry.example.org/images/appliance"
  name_filter = "4.*"
}

output "releases" {
  value = data.berth_remote_images.releases.images[*].name
}
