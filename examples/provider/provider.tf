terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}
