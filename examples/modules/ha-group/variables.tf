variable "name" {
  description = "Name of the group. Its members are `NAME-0`, `NAME-1`, …"
  type        = string
}

variable "replicas" {
  description = "Number of members."
  type        = number
  default     = 3

  validation {
    condition     = var.replicas >= 1 && floor(var.replicas) == var.replicas
    error_message = "replicas is a whole number, at least 1."
  }
}

variable "enforcement" {
  description = "required: a member for which there is no other host stays unscheduled. preferred: it shares a host."
  type        = string
  default     = "required"
}

variable "topology_key" {
  description = "The Host label that differs between members, for example a rack. Default: the host itself."
  type        = string
  default     = null
}

variable "class" {
  description = "Name of the VMClass."
  type        = string
}

variable "image" {
  description = "Name of the Image that the boot disks are made from."
  type        = string
}

variable "disk_size" {
  description = "Size of each boot disk."
  type        = string
  default     = "10Gi"
}

variable "ip_pool" {
  description = "Name of the IPPool of the public addresses. Null: the pool `default`."
  type        = string
  default     = null
}

variable "ssh_authorized_keys" {
  description = "SSH public keys for the image's default user."
  type        = list(string)
  default     = []
}

variable "user_data" {
  description = "cloud-init user data of every member."
  type        = string
  default     = null
  sensitive   = true
}
