variable "course" {
  description = "Name of the course: of its network, its label, and the beginning of its VMs' names."
  type        = string
}

variable "students" {
  description = "SSH public key of each student, by name. Adding or removing a student leaves the other machines alone."
  type        = map(string)
}

variable "teacher_keys" {
  description = "SSH public keys that open every machine."
  type        = list(string)
  default     = []
}

variable "running" {
  description = "Whether the machines run. False between lessons: disks and addresses stay."
  type        = bool
  default     = true
}

variable "public" {
  description = "Whether each machine has a public address."
  type        = bool
  default     = true
}

variable "cidr" {
  description = "Range of the course's network."
  type        = string
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
