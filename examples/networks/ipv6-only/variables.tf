variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "user_data" {
  description = "User data of each VM."
  type        = object({ web = string, client = string })
  default     = { web = "#cloud-config\n", client = "#cloud-config\n" }
}

variable "wait_for" {
  description = "The state that an apply waits for: running, or guest, which takes its address by DHCPv6."
  type        = string
  default     = "guest"
}
