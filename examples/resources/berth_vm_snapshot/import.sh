terraform import berth_vm_snapshot.example default/web
