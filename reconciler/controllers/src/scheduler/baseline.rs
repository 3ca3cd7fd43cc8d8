//! The CPU model of a VM that declares none: what the hosts have in common where it could be placed. Pure.

use berth_api::{Architecture, hardware::CPU_LEVELS};

use super::{Request, has_labels, takes_namespace};
use crate::cache::capacity::Candidate;

/// Returns the highest level of x86-64 that all hosts have which the VM's placement allows, of those that report one. A host that is
/// cordoned, full or silent counts: the VM may be there later.
pub(crate) fn cpu_baseline<'a>(
    request: &Request,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> Option<&'static str> {
    if request.architecture != Architecture::X86_64 {
        return None;
    }
    let is_allowed = |candidate: &&Candidate| {
        !candidate.cpu_levels.is_empty()
            && request.host.as_ref().is_none_or(|host| *host == candidate.name)
            && has_labels(candidate, &request.selector)
            && takes_namespace(candidate, request)
    };
    let counting: Vec<&Candidate> = candidates.filter(is_allowed).collect();
    counting.first()?;
    let is_common = |level: &&str| counting.iter().all(|candidate| candidate.cpu_levels.contains(*level));
    CPU_LEVELS.into_iter().rev().find(is_common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, levels: &[&'static str]) -> Candidate {
        let cpu_levels = levels.iter().copied().collect();
        Candidate { name: name.into(), cpu_levels, ..Candidate::default() }
    }

    fn baseline(request: &Request, hosts: &[Candidate]) -> Option<&'static str> {
        cpu_baseline(request, hosts.iter())
    }

    #[test]
    fn another_architecture_has_no_levels() {
        let arm = Request { architecture: Architecture::Aarch64, ..Request::default() };
        assert_eq!(baseline(&arm, &[host("a", &["x86-64-v2"])]), None);
    }

    #[test]
    fn it_is_the_highest_level_that_every_host_has() {
        let (old, new) = (["x86-64-v2", "x86-64-v2-AES"], ["x86-64-v2", "x86-64-v2-AES", "x86-64-v3"]);
        let any = Request::default();
        assert_eq!(baseline(&any, &[host("a", &new)]), Some("x86-64-v3"));
        assert_eq!(baseline(&any, &[host("a", &new), host("b", &old)]), Some("x86-64-v2-AES"));
        assert_eq!(baseline(&any, &[host("a", &new), host("b", &["x86-64-v4"])]), None);
    }

    #[test]
    fn hosts_that_report_no_level_do_not_count() {
        let any = Request::default();
        assert_eq!(baseline(&any, &[host("a", &["x86-64-v2"]), host("emulating", &[])]), Some("x86-64-v2"));
        assert_eq!(baseline(&any, &[host("emulating", &[])]), None);
        assert_eq!(baseline(&any, &[]), None);
    }

    #[test]
    fn only_hosts_count_where_the_vm_may_be() {
        let mut new = host("new", &["x86-64-v2", "x86-64-v3"]);
        new.labels.insert("rack".into(), "1".into());
        let hosts = [new, host("old", &["x86-64-v2"])];
        let in_rack =
            Request { selector: [("rack".to_owned(), "1".to_owned())].into(), ..Request::default() };
        assert_eq!(baseline(&in_rack, &hosts), Some("x86-64-v3"));
        let on_old = Request { host: Some("old".into()), ..Request::default() };
        assert_eq!(baseline(&on_old, &hosts), Some("x86-64-v2"));
        let namespaces = std::sync::Arc::new(["team".to_owned()].into());
        let reserved = Candidate { namespaces, ..host("old", &["x86-64-v2"]) };
        let new = host("new", &["x86-64-v2", "x86-64-v3"]);
        assert_eq!(baseline(&Request::default(), &[reserved, new]), Some("x86-64-v3"));
    }

    #[test]
    fn a_full_or_cordoned_host_counts() {
        let cordoned = Candidate { cordoned: true, ..host("b", &["x86-64-v2"]) };
        let hosts = [host("a", &["x86-64-v2", "x86-64-v3"]), cordoned];
        assert_eq!(baseline(&Request::default(), &hosts), Some("x86-64-v2"));
    }
}
