variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "user_data" {
  description = "User data that mounts the folders: the first field of a mount is the tag of a share."
  type        = string
  default     = <<-EOT
    #cloud-config
    mounts:
      - [media, /mnt/media, virtiofs, "ro,nofail", "0", "0"]
      - [work, /mnt/data, virtiofs, "rw,nofail", "0", "0"]
  EOT
}
