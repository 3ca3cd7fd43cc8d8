variable "image_url" {
  description = "Where the image is: http:// or https://, reachable from the host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}
