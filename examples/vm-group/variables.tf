variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "disk_size" {
  description = "Size of each root disk."
  type        = string
  default     = "4Gi"
}

variable "memory" {
  description = "Memory of each VM."
  type        = string
  default     = "512Mi"
}

variable "power" {
  description = "Running or Stopped: of the whole site."
  type        = string
  default     = "Running"
}
