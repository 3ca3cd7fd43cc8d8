terraform import berth_quota.example default/web
