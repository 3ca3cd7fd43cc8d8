variable "image_file" {
  description = "Path of a qcow2 image on this machine, for example one that Packer has built."
  type        = string
}
