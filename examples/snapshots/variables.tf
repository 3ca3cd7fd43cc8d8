variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "restore" {
  description = "The snapshot whose data the data disk is to have again. Another token restores the same one once more."
  type        = object({ snapshot = string, token = optional(string) })
  default     = null
}

variable "power" {
  description = "The power of the first VM."
  type        = string
  default     = "Running"
}
