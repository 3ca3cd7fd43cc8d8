variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "memory" {
  description = "The memory of each VM."
  type        = string
  default     = "512Mi"
}

variable "disk_size" {
  description = "The size of each VM's disk."
  type        = string
  default     = "4Gi"
}

variable "user_data" {
  description = "User data of the VMs."
  type        = string
  default     = "#cloud-config\n"
}

variable "wait_for" {
  description = "The state that an apply waits for: running, or guest, which needs qemu-guest-agent in a network without IPv4."
  type        = string
  default     = "guest"
}
