variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "ipv6_egress" {
  description = "The way of IPv6 packets to the outside: None, Masquerade or Routed."
  type        = string
  default     = "None"
}

variable "user_data" {
  description = "User data of each VM."
  type        = object({ web = string, client = string })
  default     = { web = "#cloud-config\n", client = "#cloud-config\n" }
}
