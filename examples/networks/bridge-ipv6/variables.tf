variable "bridge" {
  description = "The name of a Linux bridge of the hosts: one with an interface of the network as its port."
  type        = string
  default     = "vmbr0"
}

variable "image_url" {
  description = "Where the image is: http:// or https://, reachable from every host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "disk_size" {
  description = "Size of each root disk; at least that of the image."
  type        = string
  default     = "4Gi"
}

variable "memory" {
  description = "Memory of each VM."
  type        = string
  default     = "512Mi"
}

variable "user_data" {
  description = "The user data of each VM."
  type        = string
  default     = null
}
