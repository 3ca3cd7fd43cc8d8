variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "ssh_public_key" {
  description = "The public key that opens the guest."
  type        = string
}

variable "user_data" {
  description = "User data that lets sshd listen on vsock. A guest with systemd 256 or newer needs none: null."
  type        = string
  default     = <<-EOT
    #cloud-config
    write_files:
      - path: /etc/systemd/system/ssh-vsock.socket
        content: |
          [Socket]
          ListenStream=vsock::22
          Accept=yes

          [Install]
          WantedBy=sockets.target
      - path: /etc/systemd/system/ssh-vsock@.service
        content: |
          [Service]
          ExecStart=-/usr/sbin/sshd -i
          StandardInput=socket
          RuntimeDirectory=sshd
          RuntimeDirectoryPreserve=yes
    runcmd:
      - [systemctl, daemon-reload]
      - [systemctl, enable, --now, ssh-vsock.socket]
  EOT
}
