//! Rules about other VMs, and those of other VMs.

use berth_api::vm::VMAffinity;

use super::*;

fn rule(strategy: Strategy, enforcement: Enforcement, topology_key: &str) -> AffinityRule {
    let rule = VMAffinity {
        name: "web".into(),
        vm_selector: [("app".to_owned(), "web".to_owned())].into(),
        strategy,
        enforcement,
        topology_key: topology_key.to_owned(),
    };
    AffinityRule { rule, selects_itself: false }
}

fn with(rule: &AffinityRule) -> Request {
    Request { affinity: vec![rule.clone()], ..request(100) }
}

/// The host that is chosen while VMs that the rule selects are on these hosts, or the reason why there is none.
fn chosen_beside(wanted: &Request, selected: &[&str], hosts: &[Candidate]) -> Result<String, String> {
    let beside = PlacedVms { selected: vec![members(selected)], ..PlacedVms::default() };
    match choose(wanted, &beside, hosts.iter(), PlacementPolicy::Balance) {
        Ok(host) => Ok(host.to_owned()),
        Err(Unplaced::Now(text)) => Err(text),
        Err(never @ Unplaced::Never(..)) => panic!("{never:?}"),
    }
}

fn hosts() -> [Candidate; 3] {
    [labelled("a", 3000, ZONE, "1"), labelled("b", 2000, ZONE, "1"), labelled("c", 1000, ZONE, "2")]
}

#[test]
fn a_required_spread_rule_keeps_a_vm_off_hosts_or_zones_with_selected_ones() {
    let apart = rule(Strategy::Spread, Enforcement::Required, HOSTNAME_LABEL);
    assert_eq!(chosen_beside(&with(&apart), &[], &hosts()).as_deref(), Ok("a"));
    assert_eq!(chosen_beside(&with(&apart), &["a"], &hosts()).as_deref(), Ok("b"));
    let text = chosen_beside(&with(&apart), &["a", "b", "c"], &hosts()).expect_err("it is nowhere alone");
    insta::assert_snapshot!(text, @"0 of 3 hosts can take it: 3 with a VM with app=web, from which affinity web keeps it apart (it needs 1 CPUs and 100 MiB)");
    let zoned = rule(Strategy::Spread, Enforcement::Required, ZONE);
    assert_eq!(chosen_beside(&with(&zoned), &["a"], &hosts()).as_deref(), Ok("c"));
    let tied = Request { host: Some("b".into()), ..with(&zoned) };
    let text = chosen_beside(&tied, &["a"], &hosts()).expect_err("the zone has one");
    insta::assert_snapshot!(text, @"host b is one at a topology.kubernetes.io/zone with a VM with app=web, from which affinity web keeps it apart");
    let unlabelled = [host("d", 1000)];
    let text = chosen_beside(&with(&zoned), &[], &unlabelled).expect_err("it has no zone");
    assert!(text.contains("1 without the label topology.kubernetes.io/zone of affinity web"), "{text}");
}

#[test]
fn a_required_pack_rule_waits_for_a_selected_vm_unless_it_selects_the_vm_itself() {
    let together = rule(Strategy::Pack, Enforcement::Required, ZONE);
    assert_eq!(chosen_beside(&with(&together), &["c"], &hosts()).as_deref(), Ok("c"));
    let text = chosen_beside(&with(&together), &[], &hosts()).expect_err("there is none");
    assert!(
        text.contains(
            "3 at a topology.kubernetes.io/zone without a VM with app=web, with which affinity web"
        ),
        "{text}"
    );
    let replicas = AffinityRule { selects_itself: true, ..together };
    assert_eq!(chosen_beside(&with(&replicas), &[], &hosts()).as_deref(), Ok("a"), "the first of them");
    assert_eq!(chosen_beside(&with(&replicas), &["c"], &hosts()).as_deref(), Ok("c"));
    let unknown = chosen_beside(&with(&replicas), &["gone"], &hosts());
    assert!(unknown.is_err(), "the zone of the one with a host is not known: {unknown:?}");
}

#[test]
fn a_preferred_rule_chooses_among_the_hosts_that_can_take_the_vm() {
    let apart = rule(Strategy::Spread, Enforcement::Preferred, HOSTNAME_LABEL);
    assert_eq!(chosen_beside(&with(&apart), &["a", "b", "b"], &hosts()).as_deref(), Ok("c"));
    assert_eq!(chosen_beside(&with(&apart), &["a", "b", "b", "c", "c"], &hosts()).as_deref(), Ok("a"));
    let together = rule(Strategy::Pack, Enforcement::Preferred, HOSTNAME_LABEL);
    assert_eq!(chosen_beside(&with(&together), &["a", "c", "c"], &hosts()).as_deref(), Ok("c"));
    assert_eq!(chosen_beside(&with(&together), &[], &[host("d", 1000)]).as_deref(), Ok("d"));
}

#[test]
fn a_required_rule_of_another_vm_keeps_those_that_it_selects_away() {
    let against = |topology_key: &str| Repelling {
        selector: [("app".to_owned(), "db".to_owned())].into(),
        topology_key: topology_key.to_owned(),
    };
    let chosen = |topology_key: &str, at: &[&str]| {
        let wanted = Request { repelling: [against(topology_key)].into(), ..request(100) };
        let repelling = [(against(topology_key), members(at))].into();
        let beside = PlacedVms { repelling, ..PlacedVms::default() };
        choose(&wanted, &beside, hosts().iter(), PlacementPolicy::Balance).map(str::to_owned)
    };
    assert_eq!(chosen(HOSTNAME_LABEL, &["a"]), Ok("b".to_owned()));
    assert_eq!(chosen(ZONE, &["a"]), Ok("c".to_owned()));
    let Err(Unplaced::Now(text)) = chosen(ZONE, &["a", "c"]) else { panic!("each zone has one") };
    assert!(text.contains("with a VM whose affinity keeps it apart from VMs with app=db"), "{text}");
    assert_eq!(
        chosen("rack", &["a"]),
        Ok("b".to_owned()),
        "that VM's host is of no rack, and refuses it all the same"
    );
}

#[test]
fn a_vm_that_thousands_of_rules_keep_away_is_refused_by_the_last_of_them_too() {
    let rule = |number: usize| Repelling {
        selector: [("app".to_owned(), "db".to_owned()), (format!("label-{number:04}"), "x".to_owned())]
            .into(),
        topology_key: HOSTNAME_LABEL.to_owned(),
    };
    let at = |number: usize| members(if number == 4999 { &["b"] } else { &["a"] });
    let repelling: BTreeMap<_, _> = (0..5000).map(|number| (rule(number), at(number))).collect();
    let wanted = Request { repelling: repelling.keys().take(NAMED_RULES).cloned().collect(), ..request(100) };
    let beside = PlacedVms { repelling, ..PlacedVms::default() };
    let chosen = |hosts: &[Candidate]| {
        choose(&wanted, &beside, hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
    };
    assert_eq!(chosen(&hosts()), Ok("c".to_owned()));
    let Err(Unplaced::Now(text)) = chosen(&hosts()[..2]) else { panic!("each host has one") };
    assert!(text.contains("1 beside a VM whose affinity keeps it apart"), "{text}");
    assert!(text.contains("1 with a VM whose affinity keeps it apart from VMs with app=db"), "{text}");
}
