terraform import berth_image.example default/web
