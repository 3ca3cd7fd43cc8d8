// Package backend is what this build of Terraform has in place of a remote state backend: the tests keep state in files.
package backend

import "github.com/hashicorp/terraform/internal/backend"

// New is called only for a configuration that names the backend.
func New() backend.Backend {
	panic("this build of Terraform, made for tests, has no such state backend")
}
