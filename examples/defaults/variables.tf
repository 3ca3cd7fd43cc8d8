variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "zone" {
  description = "The zone of the hosts on which new VMs run: the value of their label topology.kubernetes.io/zone."
  type        = string
  default     = "a"
}
