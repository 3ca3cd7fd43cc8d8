variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "vault_address" {
  description = "The URL of the Vault. The administrator of each host allows its address with --image-allow, unless it is a public one."
  type        = string
}

variable "vault_role_id" {
  description = "The role ID of the AppRole."
  type        = string
}

variable "key_class" {
  description = "The class whose key protects the key of the disk."
  type        = string
  default     = "vault-keys"
}
