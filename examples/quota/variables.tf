variable "namespace" {
  description = "The namespace that is limited."
  type        = string
  default     = "team-a"
}

variable "disk_size" {
  description = "The size of the disk."
  type        = string
  default     = "20Gi"
}
