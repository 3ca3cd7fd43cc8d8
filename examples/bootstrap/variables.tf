variable "image_url" {
  description = "URL of a cloud image with cloud-init."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "password" {
  description = "The password of the user admin."
  type        = string
  ephemeral   = true
}

variable "keys_secret" {
  description = "A Secret: each of its values is the text of an authorized_keys file."
  type        = string
  default     = null
}

variable "password_hash" {
  description = "The hash of the password of the user admin of the second VM, as mkpasswd -m sha-512 prints it."
  type        = string
  default     = null
  sensitive   = true
}

variable "motd" {
  description = "The text of the day of the second VM. Another one restarts it."
  type        = string
  default     = "Managed by Terraform."
}
