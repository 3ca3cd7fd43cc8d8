variable "image_url" {
  description = "Where the image is: http:// or https://, reachable from every host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "replicas" {
  description = "How many VMs, each on a host of its own."
  type        = number
  default     = 3
}

variable "disk_size" {
  description = "Size of each root disk; at least that of the image."
  type        = string
  default     = "4Gi"
}

variable "public_cidrs" {
  description = "Ranges of public addresses on the hosts' network segment that no other machine uses."
  type        = list(string)
  default     = ["192.0.2.64/27"]
}

variable "patience" {
  description = "How long each VM may take until its guest answers."
  type        = string
  default     = "10m"
}
