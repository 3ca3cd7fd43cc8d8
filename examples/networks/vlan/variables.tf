variable "interface" {
  description = "The name of the interface by which the network comes to the hosts."
  type        = string
  default     = "eth1"
}

variable "vlan" {
  description = "The tag of the VLAN, 1 to 4094; null for the frames without a tag, if the hosts have no address on the interface."
  type        = number
  default     = 120
}

variable "trunk_vlans" {
  description = "The VLANs whose frames the VM sends and receives with their tag, for example [10, \"100-199\"]; not together with vlan."
  type        = list(string)
  default     = null
}

variable "image_url" {
  description = "Where the image is: http:// or https://, reachable from every host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "disk_size" {
  description = "Size of the root disk; at least that of the image."
  type        = string
  default     = "4Gi"
}

variable "memory" {
  description = "Memory of the VM."
  type        = string
  default     = "512Mi"
}

variable "user_data" {
  description = "The user data of the VM."
  type        = string
  default     = null
}
