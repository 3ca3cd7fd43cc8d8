variable "host" {
  description = "The host that is reserved, which has joined."
  type        = string
}
