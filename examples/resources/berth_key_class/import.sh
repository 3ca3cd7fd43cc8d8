terraform import berth_key_class.example default/web
