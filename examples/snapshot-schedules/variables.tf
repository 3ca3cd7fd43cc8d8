variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "schedule" {
  description = "The moments, as a cron expression."
  type        = string
  default     = "0 3 * * *"
}

variable "suspend" {
  description = "Whether no snapshots are taken for a while."
  type        = bool
  default     = false
}
