variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "image_secret" {
  description = "Name of the Secret with the user name and the password that the server asks for. Without one: null."
  type        = string
  default     = null
}

variable "root_size" {
  description = "Size of the root disk. It only grows."
  type        = string
  default     = "4Gi"
}

variable "egress" {
  description = "Bits a second that the VM sends at most."
  type        = string
  default     = "50M"
}
