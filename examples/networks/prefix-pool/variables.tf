variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "disk_size" {
  description = "Size of the root disk; at least that of the image."
  type        = string
  default     = "4Gi"
}
