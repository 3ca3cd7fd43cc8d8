ephemeral "berth_console" "log" {
  vm  = berth_vm.web.name
  uid = berth_vm.web.uid
  use = "log"
}

# Keeps what the guest has printed when it is new.
resource "terraform_data" "boot_log" {
  triggers_replace = berth_vm.web.uid

  provisioner "local-exec" {
    command = <<-EOT
      printf 'GET %s HTTP/1.1\r\nHost: berth\r\nConnection: upgrade\r\nUpgrade: berth-console\r\nAuthorization: Bearer %s\r\n\r\n' \
        "$URL_PATH" "$TICKET" |
        openssl s_client -quiet -connect "$ADDRESS" -verify_return_error \
          -dane_tlsa_domain berth-console -dane_tlsa_rrdata "3 0 1 $CERTIFICATE" > boot.log
    EOT
    environment = {
      ADDRESS     = ephemeral.berth_console.log.address
      CERTIFICATE = ephemeral.berth_console.log.certificate_sha256
      URL_PATH    = ephemeral.berth_console.log.path
      TICKET      = ephemeral.berth_console.log.token
    }
  }
}
