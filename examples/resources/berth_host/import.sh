terraform import berth_host.example example
