terraform import berth_public_ip.example default/web
