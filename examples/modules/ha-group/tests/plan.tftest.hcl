# Without a control plane: the provider is mocked.
mock_provider "berth" {}

variables {
  name  = "api"
  class = "small"
  image = "debian-12"
}

run "three_members_of_one_group" {
  command = plan

  assert {
    condition     = toset(keys(berth_vm.this)) == toset(["api-0", "api-1", "api-2"])
    error_message = "Members are numbered from 0."
  }
  assert {
    condition     = alltrue([for vm in berth_vm.this : vm.placement.group == "api"])
    error_message = "Every member is in the group."
  }
  assert {
    condition     = berth_placement_group.this.enforcement == "required"
    error_message = "Members never share a host unless asked for."
  }
}

run "no_members" {
  command = plan

  variables {
    replicas = 0
  }

  expect_failures = [var.replicas]
}
