variable "image_url" {
  description = "URL of a cloud image whose guest has a web server on port 80."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}
