variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "topology_key" {
  description = "The label of hosts that the cache shares with a web server."
  type        = string
  default     = "topology.kubernetes.io/zone"
}
