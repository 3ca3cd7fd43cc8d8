list "berth_vm" "web" {
  provider = berth
  limit    = 500

  config {
    label_selector = "tier=web"
  }
}
