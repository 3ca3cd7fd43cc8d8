variable "image_url" {
  description = "Where the image is: http://, https:// or file:/// on the host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}
