variable "pool" {
  description = "The IPPool of the address. With mode l2 the whole network segment of the hosts reaches it."
  type        = string
  default     = "default"
}

variable "targets" {
  description = "Names of the VMs."
  type        = list(string)
  default     = ["web-1", "web-2"]
}
