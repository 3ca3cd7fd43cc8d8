terraform import berth_security_group.example default/web
