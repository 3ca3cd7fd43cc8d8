terraform import berth_backup.example default/web
