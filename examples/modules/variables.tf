variable "image_url" {
  description = "Where the image is: http://, https://, or file:/// below a folder of the host that berth was started with (--image-dir)."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "memory" {
  description = "Memory of each VM."
  type        = string
  default     = "512Mi"
}

variable "firmware" {
  description = "UEFI, UEFISecureBoot or BIOS."
  type        = string
  default     = "UEFI"
}

variable "disk_size" {
  description = "Size of each disk."
  type        = string
  default     = "4Gi"
}

variable "students" {
  description = "SSH public key of each student, by name."
  type        = map(string)
  default     = {}
}

variable "protected" {
  description = "Whether the database is protected against deletion. Apply with false before a destroy."
  type        = bool
  default     = true
}

variable "web_user_data" {
  description = "cloud-init user data instead of the web server's."
  type        = string
  default     = null
}
