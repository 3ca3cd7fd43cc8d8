variable "image_url" {
  description = "URL of a cloud image with cloud-init and qemu-guest-agent."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "user" {
  description = "A user of the image."
  type        = string
  default     = "debian"
}

variable "ssh_public_key" {
  description = "An SSH public key, as in a .pub file."
  type        = string
}

variable "keys_secret" {
  description = "A Secret: each of its values is the text of an authorized_keys file."
  type        = string
  default     = null
}

variable "password_secret" {
  description = "A Secret: its key password is the user's password, as text or as a hash of mkpasswd -m sha-512."
  type        = string
  default     = null
}
