variable "image_url" {
  description = "URL of a cloud image."
  type        = string
}

variable "image_sha256" {
  description = "Its SHA-256 checksum."
  type        = string
}

variable "search_domains" {
  description = "Domains in which the guests of the first network look up names."
  type        = list(string)
  default     = ["example.org"]
}

variable "default_route_by_back" {
  description = "Whether the router gets a default route by the second network too."
  type        = bool
  default     = false
}
