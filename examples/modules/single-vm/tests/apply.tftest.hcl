# On a control plane: makes a VM and destroys it again.
# terraform test -filter=tests/apply.tftest.hcl -var class=small -var image=debian-12
variables {
  name      = "module-test"
  disk_size = "64Mi"
  wait_for  = "running"
}

run "a_vm_runs" {
  assert {
    condition     = output.private_address != null
    error_message = "A VM that runs has an address."
  }
  assert {
    condition     = output.public_address == null
    error_message = "A private VM has no public address."
  }
}

run "its_disk_grows_without_a_new_vm" {
  variables {
    disk_size = "128Mi"
  }

  assert {
    condition     = berth_vm.this.uid == run.a_vm_runs.uid
    error_message = "A larger disk needs no new VM."
  }
}
