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
