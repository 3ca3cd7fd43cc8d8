output "url" {
  description = "Where the page is."
  value       = "http://${berth_public_ip.this.address}/"
}
