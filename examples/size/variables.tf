variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "cpus" {
  description = "CPUs of the VM, up to 3 while it runs."
  type        = number
  default     = 1
}

variable "memory" {
  description = "Its memory, up to 1Gi while it runs."
  type        = string
  default     = "512Mi"
}

variable "cpu_limit" {
  description = "The CPU time that it may use at most, in CPUs of its host."
  type        = string
  default     = "1.5"
}
