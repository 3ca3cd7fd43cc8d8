variable "image_url" {
  description = "Where the image is: http:// or https://, reachable from the host."
  type        = string
}

variable "image_sha256" {
  description = "The image's SHA-256, as sha256sum prints it."
  type        = string
}

variable "gpu" {
  description = "The name under which hosts offer their GPUs. Null: the VM needs none."
  type        = string
  default     = "gpu-a100"
}

variable "gpus" {
  description = "The number of GPUs, 1 to 8."
  type        = number
  default     = 1
}

variable "vgpu" {
  description = "The name under which hosts offer vGPUs. Null: the VM needs none."
  type        = string
  default     = null
}

variable "licence_key" {
  description = "The name under which hosts offer a USB licence key. Null: the VM needs none."
  type        = string
  default     = null
}
