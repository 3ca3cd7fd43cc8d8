variable "file" {
  description = "Absolute path of the file on the host."
  type        = string
}

variable "format" {
  description = "The format of the file, qcow2 or raw. Null: qcow2."
  type        = string
  default     = null
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
