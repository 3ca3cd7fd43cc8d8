# A VM on an encrypted disk whose key is protected by a key in a Vault (or OpenBao): hosts have it encrypted and decrypted there, and the key of
# the class is on no host and in no Secret. With -var key_class=vault-keys-secret a key in a Secret protects it instead, and back without that;
# the VM runs on meanwhile.
#
# In the Vault, with the policy of docs/encryption.md:
#
#   vault secrets enable transit
#   vault write -f transit/keys/berth
#   vault policy write berth-hosts berth-hosts.hcl
#   vault auth enable approle
#   vault write auth/approle/role/berth-hosts token_policies=berth-hosts token_ttl=1h
#   vault read auth/approle/role/berth-hosts/role-id
#
# And here:
#
#   kubectl create secret generic vault-keys-login --from-literal=secretID="$(vault write -f -field=secret_id auth/approle/role/berth-hosts/secret-id)"
#   kubectl create secret generic vault-keys-ca --from-file=ca.crt=vault-ca.pem
#   kubectl create secret generic vault-keys-secret --from-literal=key="$(openssl rand -base64 32)"

terraform {
  required_version = ">= 1.11"
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}

provider "berth" {}

resource "berth_key_class" "vault" {
  name = "vault-keys"
  vault = {
    address   = var.vault_address
    mount     = "transit"
    key       = "berth"
    ca_secret = { name = "vault-keys-ca" }
    app_role = {
      role_id = var.vault_role_id
      secret  = { name = "vault-keys-login" }
    }
  }
}

resource "berth_key_class" "secret" {
  name   = "vault-keys-secret"
  secret = { name = "vault-keys-secret" }
}

locals {
  classes = {
    vault-keys        = berth_key_class.vault.name
    vault-keys-secret = berth_key_class.secret.name
  }
}

resource "berth_image" "server" {
  name = "vault-keys"
  source = {
    url    = var.image_url
    sha256 = var.image_sha256
  }
}

resource "berth_disk" "root" {
  name       = "vault-keys"
  size       = "4Gi"
  image      = berth_image.server.name
  encryption = { key_class = local.classes[var.key_class] }
}

resource "berth_vm" "server" {
  name   = "vault-keys"
  cpus   = 1
  memory = "512Mi"
  disks  = [{ name = berth_disk.root.name, boot = true }]
}
