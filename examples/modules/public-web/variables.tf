variable "name" {
  description = "Name of the VM and of its public address."
  type        = string
}

variable "page" {
  description = "The page that the server shows. Another page replaces the VM; the address stays."
  type        = string
  default     = "hello from berth\n"
}

variable "class" {
  description = "Name of the VMClass."
  type        = string
}

variable "image" {
  description = "Name of the Image that the boot disk is made from. The guest needs cloud-init, systemd and Python 3."
  type        = string
}

variable "disk_size" {
  description = "Size of the boot disk."
  type        = string
  default     = "10Gi"
}

variable "ip_pool" {
  description = "Name of the IPPool of the public address. Null: the pool `default`."
  type        = string
  default     = null
}

variable "ssh_authorized_keys" {
  description = "SSH public keys for the image's default user."
  type        = list(string)
  default     = []
}

variable "user_data" {
  description = "cloud-init user data instead of the web server's."
  type        = string
  default     = null
  sensitive   = true
}
