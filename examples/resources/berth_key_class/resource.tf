# kubectl create secret generic disk-key --from-literal=key="$(openssl rand -base64 32)"
resource "berth_key_class" "default" {
  name   = "default"
  secret = { name = "disk-key" }
}

resource "berth_disk" "secret" {
  name       = "secret"
  size       = "1Gi"
  encryption = { key_class = berth_key_class.default.name }
}
