variable "iso_url" {
  description = "The installer, for example https://…/debian-12.11.0-amd64-netinst.iso."
  type        = string
}

variable "iso_sha256" {
  description = "Its checksum."
  type        = string
}

variable "disk_size" {
  description = "The size of the blank disk."
  type        = string
  default     = "20Gi"
}

variable "memory" {
  description = "The guest's memory."
  type        = string
  default     = "2Gi"
}

variable "firmware" {
  description = "UEFI, UEFISecureBoot or BIOS."
  type        = string
  default     = "UEFI"
}

variable "resolution" {
  description = "The size of the screen that the system starts with."
  type        = string
  default     = "1280x800"
}

variable "keyboard_layout" {
  description = "The layout of the guest's keyboard, for viewers that send characters: for example de or fr. Null: a US keyboard."
  type        = string
  default     = null
}

variable "medium_inserted" {
  description = "Whether the installer is in the drive: false takes it out of the running VM."
  type        = bool
  default     = true
}
