terraform import berth_disk_snapshot.example default/web
