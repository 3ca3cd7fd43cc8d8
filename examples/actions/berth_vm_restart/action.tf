action "berth_vm_restart" "web" {
  config {
    name     = berth_vm.web.name
    wait_for = "guest"
    timeout  = "5m"
  }
}

# By hand: terraform apply -invoke=action.berth_vm_restart.web
# Or after each change of something that the guest reads when it starts:
resource "terraform_data" "settings" {
  input = var.settings

  lifecycle {
    action_trigger {
      events  = [after_update]
      actions = [action.berth_vm_restart.web]
    }
  }
}
