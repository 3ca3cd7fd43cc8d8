//! A directory with a configuration, and Terraform run in it.

use std::{
    fs,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::binary::toy;

pub(crate) struct Workspace {
    directory: TempDir,
}

impl Workspace {
    /// None, with the reason printed, if Terraform is not installed.
    pub(crate) fn new() -> Option<Self> {
        if Command::new("terraform")
            .arg("version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            eprintln!("skipped: no terraform in PATH");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let plugins = directory.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        std::os::unix::fs::symlink(toy(), plugins.join("terraform-provider-toy")).unwrap();
        let rc = format!(
            "provider_installation {{\n  dev_overrides {{ \"example/toy\" = {plugins:?} }}\n  direct {{}}\n}}\n"
        );
        fs::write(directory.path().join("terraform.rc"), rc).unwrap();
        Some(Self { directory })
    }

    pub(crate) fn write(&self, configuration: &str) {
        let required =
            "terraform {\n  required_providers {\n    toy = { source = \"example/toy\" }\n  }\n}\n";
        fs::write(self.path("main.tf"), format!("{required}{configuration}")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("terraform");
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env_remove("TF_LOG").env_remove("TF_LOG_PROVIDER").env_remove("TF_REATTACH_PROVIDERS");
        command.env("TF_CLI_CONFIG_FILE", self.path("terraform.rc")).env("CHECKPOINT_DISABLE", "1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        text
    }

    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = text(&output);
        assert!(!output.status.success(), "{text}");
        text
    }

    /// Whether the plan is empty; prints it if not.
    pub(crate) fn plan_is_empty(&self) -> bool {
        let output = self.run(&["plan", "-no-color", "-detailed-exitcode"]);
        if output.status.code() != Some(0) {
            eprintln!("{}", text(&output));
        }
        output.status.code() == Some(0)
    }

    pub(crate) fn state(&self) -> serde_json::Value {
        serde_json::from_slice(&self.run(&["show", "-json"]).stdout).unwrap()
    }

    pub(crate) fn raw_state(&self) -> String {
        fs::read_to_string(self.path("terraform.tfstate")).unwrap()
    }

    pub(crate) fn write_raw_state(&self, state: &str) {
        fs::write(self.path("terraform.tfstate"), state).unwrap();
    }

    /// Runs with providers that are already running.
    pub(crate) fn run_reattached(&self, providers: &str, arguments: &[&str]) -> Output {
        self.command(arguments).env("TF_REATTACH_PROVIDERS", providers).output().unwrap()
    }

    /// Terraform's log of its providers.
    pub(crate) fn log_of(&self, arguments: &[&str]) -> String {
        let log = self.path("log");
        let status = self
            .command(arguments)
            .env("TF_LOG_PROVIDER", "INFO")
            .env("TF_LOG_PATH", &log)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        fs::read_to_string(log).unwrap()
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let out = self.path("out");
        let file = fs::File::create(&out).unwrap();
        let mut command = self.command(arguments);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        // A process group of its own, as a shell creates it: Ctrl-C reaches Terraform and its providers alike.
        command.process_group(0);
        Running { child: command.spawn().unwrap(), out }
    }
}

/// A running Terraform.
pub(crate) struct Running {
    child: Child,
    out: PathBuf,
}

impl Running {
    /// Waits until either text is printed.
    pub(crate) fn wait_for(&self, one: &str, other: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let printed = read(&self.out);
            if printed.contains(one) || printed.contains(other) {
                return;
            }
            assert!(Instant::now() < deadline, "{printed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn interrupt(&self) {
        let group = format!("-{}", self.child.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    }

    pub(crate) fn output(mut self) -> String {
        self.child.wait().unwrap();
        read(&self.out)
    }
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
