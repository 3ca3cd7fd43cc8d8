// Stands in for each state backend that Terraform keeps in a module of its own and publishes nowhere.
module berth.dev/acceptance-tests/terraform/backend

go 1.24.5
