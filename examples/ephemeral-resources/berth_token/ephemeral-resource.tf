ephemeral "berth_token" "deploy" {
  service_account    = "deploy"
  expiration_seconds = 1800
}

# Another provider of the same run, on the same control plane, with the permissions of the ServiceAccount.
provider "kubernetes" {
  host                   = ephemeral.berth_token.deploy.host
  token                  = ephemeral.berth_token.deploy.token
  cluster_ca_certificate = ephemeral.berth_token.deploy.ca_certificate
}
