# A machine for each student, in a network of their own, reachable by ssh at a public address.

locals {
  students = { for name, key in var.students : "${var.course}-${name}" => key }
}

resource "berth_network" "course" {
  name = var.course
  cidr = var.cidr
}

resource "berth_disk" "root" {
  for_each = local.students
  name     = each.key
  image    = var.image
  size     = var.disk_size
}

resource "berth_public_ip" "this" {
  for_each = var.public ? local.students : {}
  name     = each.key
}

resource "berth_vm" "this" {
  for_each = local.students
  name     = each.key
  class    = var.class
  labels   = { course = var.course }
  disks    = [{ name = berth_disk.root[each.key].name, boot = true }]
  network_interfaces = [{
    network   = berth_network.course.name
    public_ip = var.public ? berth_public_ip.this[each.key].name : null
  }]
  bootstrap = { ssh_authorized_keys = concat([each.value], var.teacher_keys) }
  power     = var.running ? "Running" : "Stopped"
  wait_for  = var.running ? "guest" : "none"
}
