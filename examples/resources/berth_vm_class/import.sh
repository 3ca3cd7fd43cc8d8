terraform import berth_vm_class.example default/web
