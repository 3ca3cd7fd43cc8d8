variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "iso_url" {
  description = "URL of an ISO image with tools."
  type        = string
}

variable "iso_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "machine_type" {
  description = "A machine type of the host's QEMU, such as pc-q35-9.2. Default: the newest at the first start, which the VM keeps."
  type        = string
  default     = null
}

variable "watchdog" {
  description = "Reset, or PowerOff: the action when the guest does not reset its watchdog."
  type        = string
  default     = "Reset"
}

variable "repair" {
  description = "Whether the VM starts from the medium before it tries its disk."
  type        = bool
  default     = false
}
