terraform {
  required_version = ">= 1.7"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
