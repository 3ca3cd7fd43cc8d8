# Without a control plane: the provider is mocked.
mock_provider "berth" {}

variables {
  course = "linux"
  cidr   = "10.90.0.0/24"
  class  = "small"
  image  = "debian-12"
  students = {
    ada   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAsC0vYTl2hKV3EoVQpWaUwuBxKdXZrsYmuf1vYvqg2a ada"
    grace = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAsC0vYTl2hKV3EoVQpWaUwuBxKdXZrsYmuf1vYvqg2b grace"
  }
}

run "a_machine_for_each" {
  command = plan

  assert {
    condition     = toset(keys(berth_vm.this)) == toset(["linux-ada", "linux-grace"])
    error_message = "Each student has a machine."
  }
  assert {
    condition     = berth_vm.this["linux-ada"].bootstrap.ssh_authorized_keys == tolist([var.students.ada])
    error_message = "A machine is opened by its student's key."
  }
}

run "between_lessons" {
  command = plan

  variables {
    running = false
    public  = false
  }

  assert {
    condition     = alltrue([for vm in berth_vm.this : vm.power == "Stopped"])
    error_message = "The machines are off."
  }
  assert {
    condition     = length(berth_public_ip.this) == 0
    error_message = "They have no public addresses."
  }
}
