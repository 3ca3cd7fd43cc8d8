use super::*;

fn holds(text: &str, labels: &[(&str, &str)]) -> bool {
    let find = |name: &str| labels.iter().find(|(k, _)| *k == name).map(|(_, v)| *v);
    parse(text).unwrap().iter().all(|(label, test)| test.holds(find(label)))
}

#[test]
fn requirements_mean_what_kubernetes_says() {
    let labels = [("app", "web"), ("size", "5"), ("tier", ""), ("in", "in")];
    for yes in [
        "",
        " ",
        "app=web",
        "app==web",
        " app  in  ( db , web ) ",
        "app!=db",
        "app notin (db)",
        "app",
        "! gone",
        "size>4",
        "tier=",
        "tier in ()",
        "tier in (,x)",
        "tier in (x,)",
        "in in (in)",
        "in=in",
    ] {
        assert!(holds(yes, &labels), "{yes}");
    }
    for no in [
        "app=db",
        "app!=web",
        "app in (db)",
        "app in ()",
        "app notin (web,db)",
        "gone",
        "!app",
        "size<5",
        "app=web,gone",
    ] {
        assert!(!holds(no, &labels), "{no}");
    }
    assert!(holds("gone!=x,other notin (y)", &labels), "an absent label is not equal to anything");
}

#[test]
fn other_texts_keys_and_values_are_refused() {
    for text in [
        ",",
        "a,",
        "=",
        "a=b=c",
        "!a=b",
        "a in b",
        "a in (b",
        "a in (",
        "a b",
        "a=(b)",
        "!",
        "a>x",
        "-a=b",
        "a=-b",
        "a in (x,-b)",
        "a>-1",
        "size>1>2",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert_eq!(parse("a=b=c").unwrap_err(), "invalid label selector \"a=b=c\": \"=\" is unexpected");
    assert_eq!(parse("a in (").unwrap_err(), "invalid label selector \"a in (\": it ends too early");
    let long = vec!["a"; MAX_REQUIREMENTS + 1].join(",");
    assert!(parse(&long).unwrap_err().contains("at most"));
}
