variable "machine" {
  type        = string
  description = "Address of the new machine, for ssh as root."
}

ephemeral "berth_host_token" "kvm_3" {
  host               = "kvm-3"
  server             = "https://192.0.2.10:7443"
  expiration_seconds = 3600
}

# Copies the join string into a file of the machine. There, `berth host --join @/root/berth-join` joins.
resource "terraform_data" "join" {
  connection {
    type = "ssh"
    host = var.machine
    user = "root"
  }

  provisioner "file" {
    content     = ephemeral.berth_host_token.kvm_3.join
    destination = "/root/berth-join"
  }
}
