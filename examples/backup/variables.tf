variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "password_secret" {
  description = "The Secret with the password of the backups."
  type        = string
  default     = "backup-password"
}

variable "folder" {
  description = "The name of the folder of the hosts for backups, unless `s3` is set."
  type        = string
  default     = "nas"
}

variable "schedule" {
  description = "When all disks of the VM are backed up, as a cron expression."
  type        = string
  default     = "0 3 * * *"
}

variable "s3" {
  description = "A place in an object store for backups."
  type = object({
    endpoint = string
    region   = optional(string, "us-east-1")
    bucket   = string
    prefix   = optional(string)
  })
  default = null
}

variable "credentials_secret" {
  description = "The Secret with the credentials for the object store."
  type        = string
  default     = "s3-login"
}
