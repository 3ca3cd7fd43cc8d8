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

# Its key is in a Vault: see docs/encryption.md for the policy that the role needs.
resource "berth_key_class" "vault" {
  name = "in-vault"
  vault = {
    address   = "https://vault.example:8200"
    key       = "berth"
    ca_secret = { name = "vault-ca" }
    app_role  = { role_id = "3f6c0c4e-8a55-4b0c-9d5e-2f1f0a6b7c8d", secret = { name = "vault-login" } }
  }
}
