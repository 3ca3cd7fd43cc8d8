terraform import berth_disk.example default/web
