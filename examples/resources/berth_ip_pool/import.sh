terraform import berth_ip_pool.example example
