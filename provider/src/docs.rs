//! The registry pages, generated from the field tables so that they match the provider.

mod data_source;
mod function;
mod schema;

use std::{fmt::Write as _, fs, io, path::Path};

use berth_api::Power;
use tfplugin6::{Attribute, DataSource as _, Function as _, Provider as _};

use crate::{
    BerthProvider,
    action::{VmMove, VmPower, VmRestart},
    data_source::ObjectDataSource,
    ephemeral::{console::Console, host_token::HostToken, token::Token},
    field::{Effect, Field, Presence, Shape, is_refused_while_suspended},
    functions,
    list_resource::KindList,
    remote_images::RemoteImages,
    resource::KindResource,
    timeouts,
};

/// All pages: the path below the documentation's directory, and the text.
#[must_use]
pub fn pages() -> Vec<(String, String)> {
    let provider = BerthProvider::default();
    let mut pages = vec![("index.md".to_owned(), index(&provider))];
    pages.extend(provider.kinds().iter().map(|resource| {
        let name = resource.info().type_name.trim_start_matches("berth_");
        (format!("resources/{name}.md"), resource_page(resource))
    }));
    let path = |type_name: &str| format!("data-sources/{}.md", type_name.trim_start_matches("berth_"));
    pages.extend(provider.objects().iter().map(|one| (path(one.type_name()), data_source_page(one))));
    pages.extend(provider.lists().iter().map(|many| (path(many.type_name()), data_source::list_page(many))));
    let images = data_source::page(&RemoteImages, RemoteImages::EXAMPLE);
    pages.push((path(RemoteImages.type_name()), images));
    let examples = [Console::EXAMPLE, HostToken::EXAMPLE, Token::EXAMPLE];
    pages.extend(provider.ephemeral_resources().iter().zip(examples).map(|(one, example)| {
        let page = schema::page(one.type_name(), "Ephemeral Resource", &one.schema(), example);
        (format!("ephemeral-resources/{}.md", one.type_name().trim_start_matches("berth_")), page)
    }));
    pages.extend(provider.list_resources().iter().map(|one| {
        let example = KindList::example(one.type_name());
        let page = schema::page(one.type_name(), "List Resource", &one.schema(), &example);
        (format!("list-resources/{}.md", one.type_name().trim_start_matches("berth_")), page)
    }));
    pages.extend(provider.actions().iter().zip([VmPower::EXAMPLE, VmRestart::EXAMPLE, VmMove::EXAMPLE]).map(
        |(one, example)| {
            let page = schema::page(one.type_name(), "Action", &one.schema(), example);
            (format!("actions/{}.md", one.type_name().trim_start_matches("berth_")), page)
        },
    ));
    let functions = functions::ALL.iter();
    pages.extend(functions.map(|one| (format!("functions/{}.md", one.name), function::page(one))));
    pages
}

/// Writes every page.
///
/// # Errors
/// When a file cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    pages().into_iter().try_for_each(|(path, text)| {
        let path = directory.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)
    })
}

/// The page of a data source that reads one object.
#[must_use]
pub fn data_source_page(source: &ObjectDataSource) -> String {
    data_source::object_page(source)
}

fn front_matter(title: &str, description: &str) -> String {
    let first = description.split("\n\n").next().unwrap_or_default().replace('"', "'");
    format!("---\npage_title: \"{title}\"\nsubcategory: \"\"\ndescription: |-\n  {first}\n---\n\n")
}

/// The first sentence of a description.
fn first_sentence(description: &str) -> &str {
    let paragraph = description.split("\n\n").next().unwrap_or_default();
    paragraph.find(". ").map_or(paragraph, |end| &paragraph[..=end])
}

fn index(provider: &BerthProvider) -> String {
    let schema = provider.schema();
    let mut text = front_matter("berth Provider", &schema.block.description);
    let _ = write!(
        text,
        "# berth Provider\n\n{}\n\nIt looks for the control plane in this order: `kubeconfig`, or `host` with `token` and \
         `ca_certificate`, in the configuration; the same from the environment; `admin.kubeconfig` in `BERTH_STATE_DIR`, \
         which is `/var/lib/berth` when it is not set. `KUBECONFIG` and `~/.kube/config` are not used by default: set \
         `kubeconfig = pathexpand(\"~/.kube/config\")`.\n\nIf root owns the kubeconfig, use `sudo berth kubeconfig > \
         ~/berth.kubeconfig` and `BERTH_KUBECONFIG=~/berth.kubeconfig`, or `berth up --kubeconfig-owner USER`.\n\nA plan that \
         only creates resources needs no control plane.\n\n",
        schema.block.description
    );
    let example = include_str!("../../examples/provider/provider.tf");
    let _ = write!(text, "## Example Usage\n\n```terraform\n{example}```\n\n");
    text.push_str("## Arguments\n\nAll are optional.\n\n| argument | description |\n|---|---|\n");
    for Attribute { name, description, .. } in &schema.block.attributes {
        let _ = writeln!(text, "| `{name}` | {} |", cell(description));
    }
    text.push_str(
        "\n## Guides\n\n- [Coming from libvirt or Proxmox VE](guides/coming-from-libvirt-or-proxmox.md)\n",
    );
    text.push_str("\n## Resources\n\n");
    for resource in provider.kinds() {
        let name = resource.info().type_name;
        let page = name.trim_start_matches("berth_");
        let summary = first_sentence(resource.info().description);
        let _ = writeln!(text, "- [`{name}`](resources/{page}.md): {summary}");
    }
    text.push_str("\n## Data sources\n\n");
    for (one, many) in provider.objects().iter().zip(provider.lists()) {
        let link = |name: &str| format!("[`{name}`](data-sources/{}.md)", name.trim_start_matches("berth_"));
        let _ = writeln!(text, "- {}, {}", link(one.type_name()), link(many.type_name()));
    }
    text.push_str("- [`berth_remote_images`](data-sources/remote_images.md)\n");
    text.push_str(
        "\nIf a run reads more than sixteen objects of one kind, as resources or data sources, the provider lists the kind instead. \
         The list is at most two seconds old, and includes every earlier write of the same run.\n",
    );
    text.push_str("\n## List resources\n\nFor `terraform query` (Terraform 1.14 and later).\n\n");
    for one in provider.list_resources() {
        let name = one.type_name();
        let _ = writeln!(text, "- [`{name}`](list-resources/{}.md)", name.trim_start_matches("berth_"));
    }
    text.push_str("\n## Actions\n\nTerraform 1.14 and later.\n\n");
    for one in provider.actions() {
        let name = one.type_name();
        let _ = writeln!(text, "- [`{name}`](actions/{}.md)", name.trim_start_matches("berth_"));
    }
    text.push_str("\n## Ephemeral resources\n\nTerraform 1.10, OpenTofu 1.11 and later.\n\n");
    for one in provider.ephemeral_resources() {
        let name = one.type_name();
        let _ = writeln!(text, "- [`{name}`](ephemeral-resources/{}.md)", name.trim_start_matches("berth_"));
    }
    text.push_str("\n## Functions\n\nTerraform 1.8, OpenTofu 1.7 and later.\n\n");
    for function in &functions::ALL {
        let (name, summary) = (function.name, function.signature().summary);
        let _ = writeln!(text, "- [`{name}`](functions/{name}.md): {summary}");
    }
    text
}

/// The page of a resource.
#[must_use]
pub fn resource_page(resource: &KindResource) -> String {
    let info = resource.info();
    let name = info.type_name;
    let mut text = front_matter(&format!("{name} Resource - berth"), info.description);
    let _ = write!(text, "# {name} (Resource)\n\n{}\n\n", info.description);
    let _ = write!(text, "## Example Usage\n\n```terraform\n{}```\n\n", info.example);
    text.push_str("## Arguments\n\n");
    let effects = Effects::of(resource.fields());
    let _ = write!(
        text,
        "{}: *live* restarts nothing; *next power cycle* applies when the VM is next started; {}*reboot* restarts the VM; \
         *replace* creates another resource; *provider only* changes nothing outside Terraform.\n\n",
        effects.explanation(),
        if effects == Effects::One {
            ""
        } else {
            "*next start* applies when the VM is started; *none* does nothing; "
        },
    );
    arguments(&mut text, resource.fields(), "", effects);
    nested(&mut text, resource.fields(), "", effects);
    text.push_str("### `timeouts` (block)\n\n| argument | description |\n|---|---|\n");
    for attribute in timeouts::block(info.timeouts).block.attributes {
        let _ = writeln!(text, "| `{}` | {} |", attribute.name, cell(&attribute.description));
    }
    text.push_str("\n## Attributes\n\n| attribute | description |\n|---|---|\n");
    for field in resource.fields().iter().filter(|field| !field.is_input()) {
        let _ = writeln!(text, "| `{}` | {} |", field.name, cell(&field.text));
    }
    let (by, id, identity) = if resource.is_namespaced() {
        let by = "By `namespace/name`, or by `name` alone in the provider's namespace:";
        (by, "default/web", "    namespace = \"default\"\n    name      = \"web\"\n")
    } else {
        ("By `name`:", "example", "    name = \"example\"\n")
    };
    let _ = write!(
        text,
        "\n## Import\n\n{by}\n\n```shell\nterraform import {name}.example {id}\n```\n\n```terraform\nimport {{\n  to = {name}.example\n  \
         id = \"{id}\"\n}}\n```\n\nBy identity (Terraform 1.12 and later):\n\n```terraform\nimport {{\n  to = {name}.example\n  \
         identity = {{\n{identity}  }}\n}}\n```\n"
    );
    text
}

/// The columns that show the effects of changes.
#[derive(Clone, Copy, PartialEq)]
enum Effects {
    /// The same for every power of a VM.
    One,
    /// One column for each power of the VMs that a change reaches.
    OfVms,
    /// The same for a VM itself, which `allow_reboot` restarts.
    OfVm,
}

impl Effects {
    fn of(fields: &[Field]) -> Self {
        if !fields.iter().any(Field::depends_on_power) {
            Self::One
        } else if fields.iter().any(|field| field.name == "allow_reboot") {
            Self::OfVm
        } else {
            Self::OfVms
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Self::One => "*Effect* is the effect of a change on an existing resource",
            Self::OfVms => {
                "The columns *Running*, *Stopped*, *Paused* and *Suspended* are the effect of a change of an existing resource on VMs of that `power`"
            }
            Self::OfVm => {
                "The columns *Running*, *Stopped*, *Paused* and *Suspended* are the effect of a change on an existing VM of that `power`"
            }
        }
    }

    fn powers(self) -> &'static [Power] {
        if self == Self::One { &[Power::Running] } else { &Power::ALL }
    }

    fn head(self) -> String {
        let name = |power: &Power| if self == Self::One { "effect" } else { power.as_str() };
        let names: Vec<&str> = self.powers().iter().map(name).collect();
        format!(
            "| argument | type | | {} | description |\n|---|---|---|{}---|\n",
            names.join(" | "),
            "---|".repeat(names.len())
        )
    }

    /// The effects of a change of the field of this whole name.
    fn cells(self, field: &Field, name: &str) -> String {
        let is_refused = |power: Power| {
            self == Self::OfVm && power == Power::Suspended && is_refused_while_suspended(name)
        };
        let cells = self.powers().iter().map(|power| match (&field.shape, field.effect.with_power(*power)) {
            (Shape::Object(_), _) => "see below",
            _ if is_refused(*power) => Effect::NotRunning.label(),
            (_, Effect::PowerCycle) if self == Self::OfVm && *power == Power::Running => {
                "next power cycle, or reboot if `allow_reboot`"
            }
            (_, Effect::Grow) if self == Self::OfVm => {
                "live up to `max_cpus`, else next power cycle, or reboot if `allow_reboot`"
            }
            (_, Effect::Resize) if self == Self::OfVm => {
                "live up to `max_memory`, else next power cycle, or reboot if `allow_reboot`"
            }
            (_, effect) => effect.label(),
        });
        cells.collect::<Vec<_>>().join(" | ")
    }
}

fn arguments(text: &mut String, fields: &[Field], outer: &str, effects: Effects) {
    text.push_str(&effects.head());
    let mut inputs: Vec<&Field> = fields.iter().filter(|field| field.is_input()).collect();
    inputs.sort_by_key(|field| (field.presence != Presence::Required, field.effect == Effect::Local));
    for field in inputs {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            field.name,
            type_name(&field.shape),
            presence(field),
            effects.cells(field, &format!("{outer}{}", field.name)),
            cell(&description(field))
        );
    }
    text.push('\n');
}

fn nested(text: &mut String, fields: &[Field], outer: &str, effects: Effects) {
    for field in fields.iter().filter(|field| !field.children().is_empty()) {
        let name = format!("{outer}{}", field.name);
        let _ = write!(text, "### `{name}`\n\n");
        let outer = format!("{name}.");
        arguments(text, field.children(), &outer, effects);
        nested(text, field.children(), &outer, effects);
    }
}

fn type_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Text(_) => "string",
        Shape::Integer => "number",
        Shape::Bool => "bool",
        Shape::TextMap | Shape::Annotations => "map of strings",
        Shape::TextList(_) => "list of strings",
        Shape::TextListMap => "map of lists of strings",
        Shape::Object(_) => "object",
        Shape::Keyed(_) => "list of objects",
    }
}

fn presence(field: &Field) -> &'static str {
    match field.presence {
        Presence::Required => "required",
        _ if field.write_only => "optional, write-only",
        _ if field.sensitive => "optional, sensitive",
        _ => "optional",
    }
}

fn description(field: &Field) -> String {
    let mut text = field.text.clone().into_owned();
    let unsaid: Vec<String> = field
        .one_of
        .iter()
        .filter(|word| !text.contains(word.as_str()))
        .map(|word| format!("`{word}`"))
        .collect();
    if !unsaid.is_empty() {
        let words: Vec<String> = field.one_of.iter().map(|word| format!("`{word}`")).collect();
        let _ = write!(text, " One of {}.", words.join(", "));
    }
    match &field.presence {
        Presence::Default(value) if !text.contains("efault") => {
            if let Some(default) = value.as_str() {
                let _ = write!(text, " Default `{default}`.");
            } else if let Some(default) = value.as_bool() {
                let _ = write!(text, " Default `{default}`.");
            }
        }
        _ => {}
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}
