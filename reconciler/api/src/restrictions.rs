//! How an administrator restricts the VMs of a namespace: to the classes that it is offered, and to the fields that need no privilege.
//!
//! Both are marks on the Namespace, which its users cannot write, and are read by admission. The policies are in
//! `manifests/classes.rs` and `manifests/privileged_fields.rs`.

/// On a Namespace: the names of the VMClasses that its VMs may have, separated by commas. Without it they may have any, or none.
pub const OFFERED_CLASSES_ANNOTATION: &str = "berth.dev/offered-classes";
/// On a Namespace, with the value [`RESERVED`]: only privileged users set the privileged fields of its VMs and VMClasses.
pub const PRIVILEGED_FIELDS_LABEL: &str = "berth.dev/privileged-fields";
/// The value of [`PRIVILEGED_FIELDS_LABEL`] that is in force.
pub const RESERVED: &str = "Reserved";
/// The group whose members, beside administrators, no such mark restricts.
pub const PRIVILEGED_USERS: &str = "berth.dev:privileged-users";
/// The namespace whose ServiceAccounts no such mark restricts.
pub const PRIVILEGED_USERS_NAMESPACE: &str = "berth-privileged-users";
