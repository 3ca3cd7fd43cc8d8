variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "domain" {
  description = "The domain of the VMs' names."
  type        = string
  default     = "app.internal"
}

variable "vms" {
  description = "The names of the VMs."
  type        = set(string)
  default     = ["web", "db"]
}
