variable "iso_url" {
  description = "The installer of Windows, from Microsoft."
  type        = string
}

variable "iso_sha256" {
  description = "Its checksum."
  type        = string
}

variable "drivers_url" {
  description = "The drivers, virtio-win.iso of the virtio-win project."
  type        = string
}

variable "drivers_sha256" {
  description = "Its checksum."
  type        = string
}

variable "disk_size" {
  description = "The size of the blank disk."
  type        = string
  default     = "80Gi"
}

variable "installed" {
  description = "Whether Windows is installed: true takes the installer out of the running VM."
  type        = bool
  default     = false
}

variable "generalized" {
  description = "Whether the installed system is generalized and off: true makes an image of it."
  type        = bool
  default     = false
}
