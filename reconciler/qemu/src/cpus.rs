//! The CPUs of a running machine, and plugging in further ones.
//!
//! A machine has places for as many CPUs as its topology; those beyond its number of CPUs are free at the start.

use serde_json::{Map, Value, json};

use crate::qmp::{Qmp, QmpError, shorten};

/// The CPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cpus {
    /// The number that it has.
    pub present: usize,
    /// The places for further ones, in the order in which they are taken.
    free: Vec<Place>,
}

/// A place for a CPU.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    /// QEMU's device of a CPU of this machine's model.
    driver: String,
    /// Socket, core and thread.
    position: Map<String, Value>,
}

impl Cpus {
    /// The most that it can have while it runs.
    #[must_use]
    pub fn most(&self) -> usize {
        self.present + self.free.len()
    }
}

/// Reads which CPUs a machine has.
pub async fn observe(qmp: &Qmp) -> Result<Cpus, QmpError> {
    const COMMAND: &str = "query-hotpluggable-cpus";
    let answer = match qmp.execute(COMMAND, Value::Null).await {
        // Its machine type has no places for more, as that of aarch64.
        Err(QmpError::Refused { .. }) => return without_places(qmp).await,
        answer => answer?,
    };
    parse(&answer)
        .ok_or_else(|| QmpError::Unexpected { command: COMMAND.to_owned(), detail: shorten(&answer) })
}

/// Counts the CPUs of a machine without places for further ones.
async fn without_places(qmp: &Qmp) -> Result<Cpus, QmpError> {
    const COMMAND: &str = "query-cpus-fast";
    let answer = qmp.execute(COMMAND, Value::Null).await?;
    let unexpected = || QmpError::Unexpected { command: COMMAND.to_owned(), detail: shorten(&answer) };
    let present = answer.as_array().ok_or_else(unexpected)?.len();
    Ok(Cpus { present, free: Vec::new() })
}

fn parse(answer: &Value) -> Option<Cpus> {
    let mut cpus = Cpus::default();
    for place in answer.as_array()? {
        if place.get("qom-path").is_some() {
            cpus.present += 1;
            continue;
        }
        let driver = place.get("type")?.as_str()?.to_owned();
        cpus.free.push(Place { driver, position: place.get("props")?.as_object()?.clone() });
    }
    // QEMU lists the last place first.
    cpus.free.sort_by_key(|place| {
        ["socket-id", "die-id", "core-id", "thread-id"]
            .map(|id| place.position.get(id).and_then(Value::as_u64))
    });
    Some(cpus)
}

/// Plugs CPUs in until the machine has this number, or no place is left. CPUs are never removed.
///
/// The guest's kernel decides when it uses them: on Linux each has to be set online.
pub async fn plug(qmp: &Qmp, wanted: usize) -> Result<(), QmpError> {
    let cpus = observe(qmp).await?;
    for place in cpus.free.into_iter().take(wanted.saturating_sub(cpus.present)) {
        let position: Vec<String> = place.position.values().map(ToString::to_string).collect();
        let mut device = json!({"driver": place.driver, "id": format!("cpu-{}", position.join("-"))});
        if let Value::Object(arguments) = &mut device {
            arguments.extend(place.position);
        }
        qmp.execute("device_add", device).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_from_the_first_on() {
        let place = |core: u64| json!({"props": {"core-id": core, "thread-id": 0, "socket-id": 0}, "vcpus-count": 1, "type": "max-x86_64-cpu"});
        let mut first = place(0);
        first["qom-path"] = json!("/machine/unattached/device[0]");
        let cpus = parse(&json!([place(2), place(1), first])).expect("three places");
        assert_eq!((cpus.present, cpus.most()), (1, 3));
        let cores: Vec<_> = cpus.free.iter().map(|place| place.position["core-id"].clone()).collect();
        assert_eq!(cores, [1, 2]);
        for wrong in [json!({}), json!([{}]), json!([{"type": "x"}])] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }
}
