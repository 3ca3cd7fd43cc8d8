# Disks on two drives of a host: the system on fast storage, the data on a large one. The host's administrator names a folder for each pool:
# berth host --pool-folder fast=/mnt/nvme/berth --pool-folder slow=/mnt/disks/berth

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

# Disks that name no pool are in this one.
provider "berth" {
  pool = "fast"
}

# The sizes of its disks on a host may be twice the space together.
resource "berth_storage_pool" "fast" {
  name               = "fast"
  overcommit_percent = 200
}

# The sizes of its disks may not exceed the space. Disks of the namespace `archives` that name no pool are in it.
resource "berth_storage_pool" "slow" {
  name                   = "slow"
  labels                 = { media = "disk" }
  overcommit_percent     = 100
  default_for_namespaces = ["archives"]
}

resource "berth_image" "system" {
  name = "pools"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

# With another pool, the disk moves there while its guest runs on.
resource "berth_disk" "data" {
  name       = "pools-data"
  size       = "1Gi"
  pool       = var.data_pool
  depends_on = [berth_storage_pool.fast, berth_storage_pool.slow]
}

# Its pool is the one with the most room on the host of its VM.
resource "berth_disk" "cache" {
  name  = "pools-cache"
  size  = "1Gi"
  pools = [berth_storage_pool.fast.name, berth_storage_pool.slow.name]
}

# In a pool with these labels, of which there is one. A larger size reaches a running VM at its next power cycle.
resource "berth_disk" "spare" {
  name          = "pools-spare"
  size          = "1Gi"
  pool_selector = berth_storage_pool.slow.labels
  expand_policy = "Offline"
  limits        = { read_iops = 500, write_iops = 200, read_bandwidth = "50Mi", write_bandwidth = "20Mi" }
}

resource "berth_vm" "archive" {
  name   = "pools"
  cpus   = 1
  memory = "512Mi"
  disks = [
    { name = "pools-root", boot = true, template = { image = berth_image.system.name, size = "4Gi" } },
    { name = berth_disk.data.name },
    { name = berth_disk.cache.name },
  ]
  network_interfaces = [{}]
  wait_for           = "guest"
  depends_on         = [berth_storage_pool.fast]
}

output "address" {
  value = berth_vm.archive.private_address
}
