variable "library" {
  description = "The namespace of the image, which exists."
  type        = string
}

variable "team" {
  description = "The namespace that uses it, which exists."
  type        = string
}

variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}
