variable "builder" {
  description = "The namespace of the disk, which exists."
  type        = string
}

variable "consumer" {
  description = "The namespace that has its data, which exists."
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
