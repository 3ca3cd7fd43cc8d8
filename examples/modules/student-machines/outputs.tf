output "addresses" {
  description = "The address of each student's machine: the public one, or without public addresses the private one."
  value = {
    for name in keys(var.students) : name => (
      var.public ? berth_public_ip.this["${var.course}-${name}"].address : berth_vm.this["${var.course}-${name}"].private_address
    )
  }
}
