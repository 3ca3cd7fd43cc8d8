variable "name" {
  description = "Name of the VM. Its disks are `NAME-root` and `NAME-data`."
  type        = string
}

variable "class" {
  description = "Name of the VMClass."
  type        = string
}

variable "image" {
  description = "Name of the Image that the boot disk is made from."
  type        = string
}

variable "disk_size" {
  description = "Size of the boot disk."
  type        = string
  default     = "10Gi"
}

variable "data_size" {
  description = "Size of the data disk. It can grow while the VM runs."
  type        = string
  default     = "100Gi"
}

variable "data_pool" {
  description = "Name of the StoragePool of the data disk. Null: the pool `default`."
  type        = string
  default     = null
}

variable "data_path" {
  description = "Where the guest mounts the data disk."
  type        = string
  default     = "/var/lib/postgresql"
}

variable "packages" {
  description = "Packages that the guest installs at its first boot."
  type        = list(string)
  default     = ["postgresql"]
}

variable "protected" {
  description = "Whether the VM and its data are protected against deletion. Apply with false before a destroy."
  type        = bool
  default     = true
}

variable "network" {
  description = "Name of the Network. Null: the namespace's default network."
  type        = string
  default     = null
}

variable "ssh_authorized_keys" {
  description = "SSH public keys for the image's default user."
  type        = list(string)
  default     = []
}

variable "user_data" {
  description = "cloud-init user data. Null: formats and mounts the data disk, and installs the packages."
  type        = string
  default     = null
  sensitive   = true
}
