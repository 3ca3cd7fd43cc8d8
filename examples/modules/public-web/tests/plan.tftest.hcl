# Without a control plane: the provider is mocked, with the address that the pool would give out.
mock_provider "berth" {
  mock_resource "berth_public_ip" {
    defaults = {
      address = "192.0.2.10"
    }
  }
}

variables {
  name  = "www"
  class = "small"
  image = "debian-12"
  page  = "<h1>It works</h1>"
}

run "the_url_is_the_address" {
  assert {
    condition     = output.url == "http://192.0.2.10/"
    error_message = "The URL has the public address."
  }
  assert {
    condition     = strcontains(berth_vm.this.bootstrap.user_data, base64encode("<h1>It works</h1>"))
    error_message = "The guest serves the page."
  }
}
