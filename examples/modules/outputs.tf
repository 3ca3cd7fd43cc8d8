output "app" {
  value = module.app.public_address
}

output "api" {
  value = module.api.public_addresses
}

output "orders" {
  value = module.orders.private_address
}

output "www" {
  value = module.www.url
}

output "course" {
  value = module.course.addresses
}
