resource "berth_public_ip" "web" {
  name = "web"
}

output "public_address" {
  value = berth_public_ip.web.address
}
