# Without a control plane: the provider is mocked.
mock_provider "berth" {}

variables {
  name  = "app"
  class = "small"
  image = "debian-12"
}

run "private_by_default" {
  command = plan

  assert {
    condition     = length(berth_public_ip.this) == 0
    error_message = "A VM has no public address unless asked for."
  }
  assert {
    condition     = berth_vm.this.network_interfaces[0].public_ip == null
    error_message = "The interface of a private VM names no public address."
  }
}

run "public" {
  command = plan

  variables {
    public = true
  }

  assert {
    condition     = berth_vm.this.network_interfaces[0].public_ip == "app"
    error_message = "The interface names the public address."
  }
}
