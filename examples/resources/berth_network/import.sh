terraform import berth_network.example default/web
