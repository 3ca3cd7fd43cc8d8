terraform import berth_vm.example default/web
