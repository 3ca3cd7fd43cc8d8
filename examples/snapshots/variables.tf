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

variable "allow_reboot" {
  description = "Whether an apply restarts the VM for what waits for its next power cycle."
  type        = bool
  default     = false
}
