variable "file" {
  description = "Absolute path of the qcow2 file on the host."
  type        = string
}

variable "host" {
  description = "Name of the host that has the file."
  type        = string
}

variable "mac_address" {
  description = "The MAC address that the guest had, so that its network configuration still applies. Null: one of berth's."
  type        = string
  default     = null
}
