# A VM with a name and a domain of its own, a password whose hash is declared, and settings for cloud-init. Another text of the day
# restarts it: cloud-init then runs again, as in a new instance.

resource "berth_disk" "settings" {
  name  = "bootstrap-settings-root"
  size  = "4Gi"
  image = berth_image.guest.name
}

resource "berth_vm" "settings" {
  name     = "bootstrap-settings"
  cpus     = 1
  memory   = "512Mi"
  disks    = [{ name = berth_disk.settings.name, boot = true }]
  wait_for = "guest"

  bootstrap = {
    hostname = "web"
    domain   = "example.org"

    user = "admin"
    # mkpasswd -m sha-512
    password_hash = var.password_hash

    # Keys of one's own, which programs in the guest read: cloud-init query ds.meta_data.site
    meta_data = yamlencode({ site = "vienna" })

    # In place of the configuration that berth generates: all cards whose names begin with "e".
    network_config = yamlencode({
      version   = 2
      ethernets = { cards = { match = { name = "e*" }, dhcp4 = true } }
    })

    user_data = provider::berth::cloud_config({
      write_files = [{ path = "/etc/motd", content = "${var.motd}\n" }]
    })
    user_data_policy = "reboot"
  }
}
