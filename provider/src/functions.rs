//! The provider's functions, `provider::berth::NAME(…)`: quantities, addresses, cloud-configs, and the
//! customization of guests.
//!
//! Pure: no client, no configuration, no state.

mod address;
mod cloud_config;
mod guest_customization;
mod quantity;
mod yaml;

use async_trait::async_trait;
use tfplugin6::{Function, FunctionError, Value, function::Signature};

/// One function.
#[derive(Debug, Clone, Copy)]
pub struct PureFunction {
    /// The name.
    pub name: &'static str,
    /// The HCL example of its documentation.
    pub example: &'static str,
    signature: fn() -> Signature,
    call: fn(&[Value]) -> Result<Value, FunctionError>,
}

/// All functions, sorted by name.
pub const ALL: [PureFunction; 6] = [
    PureFunction {
        name: "address_parse",
        example: include_str!("../../examples/functions/address_parse/function.tf"),
        signature: address::parse_signature,
        call: address::parse,
    },
    PureFunction {
        name: "bytes_quantity",
        example: include_str!("../../examples/functions/bytes_quantity/function.tf"),
        signature: quantity::from_bytes_signature,
        call: quantity::from_bytes,
    },
    PureFunction {
        name: "cloud_config",
        example: include_str!("../../examples/functions/cloud_config/function.tf"),
        signature: cloud_config::build_signature,
        call: cloud_config::build,
    },
    PureFunction {
        name: "cloud_config_merge",
        example: include_str!("../../examples/functions/cloud_config_merge/function.tf"),
        signature: cloud_config::merge_signature,
        call: cloud_config::merge,
    },
    PureFunction {
        name: "guest_customization",
        example: include_str!("../../examples/functions/guest_customization/function.tf"),
        signature: guest_customization::signature,
        call: guest_customization::call,
    },
    PureFunction {
        name: "quantity_bytes",
        example: include_str!("../../examples/functions/quantity_bytes/function.tf"),
        signature: quantity::to_bytes_signature,
        call: quantity::to_bytes,
    },
];

#[async_trait]
impl Function for PureFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> Signature {
        (self.signature)()
    }

    async fn call(&self, arguments: Vec<Value>) -> Result<Value, FunctionError> {
        (self.call)(&arguments)
    }
}

/// A text argument. Terraform passes neither null nor unknown values.
fn text(arguments: &[Value], index: usize) -> &str {
    arguments.get(index).and_then(Value::as_str).unwrap_or_default()
}
