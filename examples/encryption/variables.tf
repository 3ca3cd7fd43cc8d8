variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "key_class" {
  description = "The class whose key protects the keys of the disks."
  type        = string
  default     = "encryption-1"
}
