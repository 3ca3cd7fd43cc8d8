variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "restore" {
  description = "The name of the snapshot of the VM whose data its disks are to have again."
  type        = string
  default     = null
}

variable "power" {
  description = "The power of the first VM."
  type        = string
  default     = "Running"
}
