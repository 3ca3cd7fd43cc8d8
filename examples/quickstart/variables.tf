variable "image_url" {
  description = "Where the image is: http://, https://, or file:/// below a folder of the host that berth was started with (--image-dir)."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "guest_agent" {
  description = "Whether qemu-guest-agent runs in the image: a disk that it says is mounted is not detached."
  type        = bool
  default     = false
}
