# A web server with a public address that stays when the VM is replaced.

locals {
  user_data = <<-EOT
    #cloud-config
    write_files:
      - path: /srv/www/index.html
        encoding: b64
        content: ${base64encode(var.page)}
    runcmd:
      - [systemd-run, --unit=web, python3, -m, http.server, --directory, /srv/www, "80"]
  EOT
}

resource "berth_public_ip" "this" {
  name = var.name
  pool = var.ip_pool
}

resource "berth_disk" "root" {
  name  = "${var.name}-root"
  image = var.image
  size  = var.disk_size
}

resource "berth_vm" "this" {
  name               = var.name
  class              = var.class
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.this.name }]
  bootstrap = {
    ssh_authorized_keys = var.ssh_authorized_keys
    user_data           = coalesce(var.user_data, local.user_data)
    user_data_policy    = "replace"
  }
  wait_for = "guest"
}
