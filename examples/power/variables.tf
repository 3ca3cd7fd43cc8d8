variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "web_power" {
  description = "Running, Stopped, Paused, or Suspended: as web_suspend_mode says."
  type        = string
  default     = "Running"
}

variable "web_suspend_mode" {
  description = "Where its memory is while it is suspended: Disk, a file of its host, or Memory, that of its host."
  type        = string
  default     = "Disk"
}

variable "restart_token" {
  description = "Another text restarts the database once."
  type        = string
  default     = null
}

variable "held" {
  description = "Why the database must not be deleted."
  type        = string
  default     = null
}

variable "web_held" {
  description = "Why the web server must not be started."
  type        = string
  default     = null
}
