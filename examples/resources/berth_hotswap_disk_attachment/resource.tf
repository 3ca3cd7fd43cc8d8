resource "berth_hotswap_disk_attachment" "data" {
  vm   = berth_vm.web.name
  disk = berth_disk.data.name
}
