//! Names of VMs across hosts: a domain for the network of running guests on three hosts.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::security_groups::Addresses;
use super::{SOON, network_of};
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::report::Report;
use crate::wait;

/// Gives the guests' network a domain, and takes it away again.
pub fn run(report: &mut Report, fleet: &Fleet, addresses: &Addresses) {
    let Addresses { private, public } = addresses;
    report.case(
        "with a domain, each running guest finds those of other hosts by name, and their names",
        || {
            let network = network_of(fleet, "web-0")?;
            set_domain(fleet, &network, &json!("app.internal"))?;
            for address in public.values() {
                for (other, private) in private {
                    let name = complete_name(&network, other);
                    wait::until(&format!("{address} to find {name}"), SOON, || {
                        let page = resolve(fleet, address, &name)?;
                        ensure!(field(&page, "address")? == private, "{name}: {page}");
                        Ok(())
                    })?;
                    let page = resolve(fleet, address, private)?;
                    ensure!(field(&page, "name")? == name, "{private}: {page}");
                }
                let page = resolve(fleet, address, "nothing.app.internal")?;
                ensure!(field(&page, "unknown")? == "yes", "{page}");
            }
            Ok(())
        },
    );
    report.case("without the domain, the names go", || {
        let network = network_of(fleet, "web-0")?;
        set_domain(fleet, &network, &Value::Null)?;
        let object = fleet.kubectl().within(&network.0).until(
            &format!("network/{}", network.1),
            "no names",
            SOON,
            |object| object["status"]["names"].is_null(),
        )?;
        ensure!(object["spec"]["dnsDomain"].is_null(), "{object:#}");
        let name = complete_name(&network, private.keys().next().context("no guest")?);
        for address in public.values() {
            wait::until(&format!("{address} not to find {name}"), SOON, || {
                let page = resolve(fleet, address, &name)?;
                ensure!(field(&page, "address").is_err(), "{name}: {page}");
                Ok(())
            })?;
        }
        Ok(())
    });
}

/// Returns a VM's name with the domain. In the shared namespace it has the namespace of the VM.
fn complete_name((namespace, _): &(String, String), vm: &str) -> String {
    let of_vm = if namespace == "berth-shared" { ".default" } else { "" };
    format!("{vm}{of_vm}.app.internal")
}

fn set_domain(fleet: &Fleet, (namespace, name): &(String, String), domain: &Value) -> Result<()> {
    let patch = json!({"spec": {"dnsDomain": domain}}).to_string();
    let kubectl = fleet.kubectl().within(namespace);
    kubectl.ok(&["patch", "network", name, "--type=merge", "-p", &patch]).map(drop)
}

/// Returns what a guest, called on its public address, finds for a name or an address.
fn resolve(fleet: &Fleet, from: &str, name: &str) -> Result<String> {
    http::get(fleet.outside(), from, &format!("/cgi-bin/resolve?name={name}"), SOON)
}
