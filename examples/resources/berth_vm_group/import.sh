terraform import berth_vm_group.example default/web
