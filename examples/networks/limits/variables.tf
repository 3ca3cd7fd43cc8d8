variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "isolated" {
  description = "Whether the guests are kept from each other."
  type        = bool
  default     = true
}

variable "egress_bandwidth" {
  description = "Bits a second that the server sends at most."
  type        = string
  default     = "50M"
}
