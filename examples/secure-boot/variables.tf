variable "image_url" {
  description = "URL of an image whose boot loader is signed with a key of db."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "keys_secret" {
  description = "A Secret with certificates as PEM: PK, KEK, db and, if some are to be refused, dbx."
  type        = string
  default     = "boot-keys"
}

variable "keys_token" {
  description = "Any text. Another one enrolls the keys again."
  type        = string
  default     = "1"
}
