# Without a control plane: the provider is mocked.
mock_provider "berth" {}

variables {
  name  = "orders"
  class = "large"
  image = "debian-12"
}

run "data_is_protected" {
  command = plan

  assert {
    condition     = berth_disk.data.deletion_policy == "Retain" && berth_disk.data.deletion_protection
    error_message = "The data disk is protected by default."
  }
  assert {
    condition     = [for disk in berth_vm.this.disks : disk.name] == ["orders-root", "orders-data"]
    error_message = "The VM has both disks."
  }
  assert {
    condition     = strcontains(berth_vm.this.bootstrap.user_data, "[LABEL=data, /var/lib/postgresql,")
    error_message = "The guest mounts the data disk."
  }
}
