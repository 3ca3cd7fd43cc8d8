# Moves the VM away from its host, before that is taken out of service: terraform apply -invoke=action.berth_vm_move.web
action "berth_vm_move" "web" {
  config {
    name     = berth_vm.web.name
    to       = "kvm-2"
    restart  = true
    wait_for = "guest"
  }
}
