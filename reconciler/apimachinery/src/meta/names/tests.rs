use super::*;

/// Returns the first words of each error.
fn reported(problems: &[String]) -> Vec<String> {
    problems.iter().map(|problem| problem.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn names_are_dns_subdomains() {
    for good in ["a", "web-1.example", &"a".repeat(253)] {
        assert!(dns_subdomain(good).is_empty(), "{good}");
    }
    for bad in ["", "A", "-a", "a-", "a..b", "a_b", "ä", ".a"] {
        assert_eq!(dns_subdomain(bad), [SUBDOMAIN], "{bad}");
    }
    assert_eq!(dns_subdomain(&"a".repeat(254)), ["must be no more than 253 characters"]);
}

#[test]
fn a_label_has_no_dots() {
    assert!(dns_label("a-1").is_empty());
    assert_eq!(dns_label("a.b"), ["must not contain dots"]);
    assert_eq!(dns_label("A"), [LABEL]);
    assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
    assert_eq!(dns_label(&"A".repeat(64)).len(), 2);
}

#[test]
fn each_part_of_a_qualified_name_is_judged() {
    assert!(qualified_name("example.com/My_Name.x").is_empty() && qualified_name("a").is_empty());
    let table: [(&str, &[&str]); 6] = [
        ("", &["name part must be", "name part must consist"]),
        ("/b", &["prefix part must be"]),
        ("A_b/", &["prefix part a lowercase", "name part must be", "name part must consist"]),
        ("a b", &["name part must consist"]),
        ("a/b/c", &["a qualified name must"]),
        ("-a", &["name part must consist"]),
    ];
    for (text, problems) in table {
        assert_eq!(reported(&qualified_name(text)), problems, "{text}");
    }
    assert_eq!(qualified_name(&"a".repeat(64)), ["name part must be no more than 63 characters"]);
}

#[test]
fn a_label_may_be_empty_and_a_key_of_data_no_path() {
    assert!(label_value("").is_empty() && label_value("My_value.1").is_empty());
    assert_eq!(label_value("-"), [LABEL_VALUE]);
    assert!(data_key(".a-b_C").is_empty() && data_key("a..").is_empty());
    let table: [(&str, &[&str]); 5] = [
        ("", &["a valid config key"]),
        ("a/b", &["a valid config key"]),
        (".", &["must not be '.'"]),
        ("..", &["must not be '..'"]),
        ("..x", &["must not start with"]),
    ];
    for (text, problems) in table {
        assert_eq!(reported(&data_key(text)), problems, "{text}");
    }
}

#[test]
fn a_prefix_may_end_in_a_dash() {
    assert!(NameRule::Subdomain.problems_of_prefix("ada-").is_empty());
    assert!(NameRule::Subdomain.problems_of_prefix("Ada_").len() == 1);
    assert!(NameRule::Label.problems_of_prefix("a-").is_empty());
    assert_eq!(NameRule::Label.problems_of_prefix("-"), [LABEL]);
    assert!(NameRule::PathSegment.problems_of_prefix("..").is_empty());
    assert_eq!(NameRule::PathSegment.problems("a/%"), ["may not contain '/'", "may not contain '%'"]);
    assert_eq!(NameRule::PathSegment.problems("."), ["may not be '.'"]);
    assert!(NameRule::PathSegment.problems(&"a".repeat(1024)).is_empty());
    assert_eq!(
        NameRule::PathSegment.problems(&"a".repeat(1025)),
        ["must be no more than 1024 characters"],
        "its path would be refused, and the object stay for ever"
    );
}
