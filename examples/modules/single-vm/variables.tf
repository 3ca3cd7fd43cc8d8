variable "name" {
  description = "Name of the VM. Its disk is `NAME-root`."
  type        = string
}

variable "class" {
  description = "Name of the VMClass. Null: none, and cpus is required."
  type        = string
  default     = null
}

variable "cpus" {
  description = "Virtual CPUs. Null: those of the class."
  type        = number
  default     = null
}

variable "memory" {
  description = "Guest memory. Null: that of the class, or without one 2Gi for each CPU."
  type        = string
  default     = null
}

variable "firmware" {
  description = "UEFI, UEFISecureBoot or BIOS. Null: that of the class, or without one UEFI."
  type        = string
  default     = null
}

variable "image" {
  description = "Name of the Image that the boot disk is made from."
  type        = string
}

variable "disk_size" {
  description = "Size of the boot disk. It can grow while the VM runs."
  type        = string
  default     = "10Gi"
}

variable "network" {
  description = "Name of the Network. Null: the namespace's default network."
  type        = string
  default     = null
}

variable "public" {
  description = "Whether the VM has a public address."
  type        = bool
  default     = false
}

variable "ssh_authorized_keys" {
  description = "SSH public keys for the image's default user."
  type        = list(string)
  default     = []
}

variable "user_data" {
  description = "cloud-init user data. Another text replaces the VM, which runs it as a new machine; its disk stays."
  type        = string
  default     = null
  sensitive   = true
}

variable "labels" {
  description = "Labels of the VM."
  type        = map(string)
  default     = {}
}

variable "wait_for" {
  description = "The state that an apply waits for: none, running or guest."
  type        = string
  default     = "guest"
}
