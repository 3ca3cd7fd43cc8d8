variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "user_data" {
  description = "User data that mounts the disk by the label of its file system."
  type        = string
  default     = <<-EOT
    #cloud-config
    mounts:
      - ["LABEL=scratch", /mnt/scratch, ext4, "defaults,nofail", "0", "0"]
  EOT
}
