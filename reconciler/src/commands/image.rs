//! `berth image push`: an Image from a file of this machine.

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use async_trait::async_trait;
use berth_agent::TypedApi;
use berth_api::{
    Image, ImageSource, ImageSpec,
    console::{UPLOAD_ACCOUNT, upload_audience, upload_path},
    image::ImageUpload,
};
use berth_console_client::{
    Awaited, MeasuredFile, Next, PushError, Seen, Target, UploadPlace, measure, push as upload,
};
use kube::{Client, ResourceExt, api::PostParams};
use tokio::time::{Instant, sleep};

use crate::{
    cli::ImagePushOptions,
    commands::{connect, console::connection::ticket, outage::Outage, progress::Progress, resources},
    one_connection::client_of,
    requests::has_code,
};

const PAUSE: Duration = Duration::from_millis(500);

/// Uploads a file, and waits until the Image is ready.
///
/// *Errors:* the file cannot be read; another Image has the name; the host refuses the file; the control plane is away for minutes. The Image
/// stays, and with it what was uploaded.
pub(super) async fn push(options: ImagePushOptions) -> anyhow::Result<()> {
    let (namespace, name) = (resources::checked(&options.namespace)?, resources::checked(&options.name)?);
    notice!("computing the checksum of {}", options.file.display());
    let path = options.file.clone();
    let file =
        tokio::task::spawn_blocking(move || measure(&path, None)).await.context("reading the file")??;
    let client = client_of(connect::admin(&options.connection, &options.state.state_dir).await?)?;
    let images: TypedApi<Image> = TypedApi::namespaced(client.clone(), namespace);
    let uid = declare(&images, name, &spec(&options, &file)).await?.uid().unwrap_or_default();
    let wait = options.timeout.0;
    let place = Place {
        client,
        images,
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        uid,
        awaited: Awaited::host(Instant::now() + wait),
        progress: Progress::new(file.size(), "uploaded"),
        outage: Outage::default(),
    };
    let what = || {
        format!(
            "uploading {} as Image {namespace}/{name}; the same command continues an upload",
            options.file.display()
        )
    };
    upload(&place, &file).await.map_err(into_error).with_context(what)?;
    place.progress.end();
    let verified = Awaited::verified(Instant::now() + wait);
    loop {
        let Some(image) = place.outage.answer(place.read().await)? else {
            sleep(PAUSE).await;
            continue;
        };
        match verified.look(&image) {
            Ok(Seen::Ready) => break,
            Ok(_) => sleep(PAUSE).await,
            Err(why) => bail!("Image {namespace}/{name} is not ready: {why}"),
        }
    }
    writeln!(std::io::stdout(), "image/{name} is ready").context("printing")
}

fn into_error(error: PushError<anyhow::Error>) -> anyhow::Error {
    match error {
        PushError::Place(error) => error,
        PushError::Upload(error) => error.into(),
    }
}

fn spec(options: &ImagePushOptions, file: &MeasuredFile) -> ImageSpec {
    let size = i64::try_from(file.size()).unwrap_or(i64::MAX);
    ImageSpec {
        source: ImageSource {
            upload: Some(ImageUpload { size }),
            sha256: Some(file.sha256.clone()),
            ..ImageSource::default()
        },
        format: options.format,
        compression: options.compression,
        ova_disk: options.ova_disk,
        display_name: options.display_name.clone(),
        description: options.description.clone(),
        version: options.image_version.clone(),
        owner: options.owner.clone(),
        ..ImageSpec::default()
    }
}

/// Creates the Image, or returns the one that an earlier command created for the same file.
async fn declare(images: &TypedApi<Image>, name: &str, spec: &ImageSpec) -> anyhow::Result<Image> {
    let reading = || format!("reading Image {name}");
    loop {
        if let Some(found) = images.get_opt(name).await.with_context(reading)? {
            check_same(&found, spec)?;
            return Ok(found);
        }
        match images.create(&PostParams::default(), &Image::new(name, spec.clone())).await {
            // Another client was faster.
            Err(error) if has_code(&error, 409) => {}
            made => return made.with_context(|| format!("creating Image {name}")),
        }
    }
}

/// Refuses an Image that is not of this file.
fn check_same(found: &Image, spec: &ImageSpec) -> anyhow::Result<()> {
    let name = found.name_any();
    if found.metadata.deletion_timestamp.is_some() {
        bail!("Image {name} is being deleted: wait until it is gone, or choose another --name");
    }
    let (is, wanted) = (&found.spec, spec);
    let difference = match () {
        () if is.source.upload.is_none() => "it is not an uploaded image",
        () if is.source != wanted.source => "it is of another file, with another checksum or size",
        () if is.format != wanted.format => "it has another format",
        () if is.ova_disk != wanted.ova_disk => "it has another disk of its OVA",
        () if is.compression != wanted.compression => "it has another compression",
        () => return Ok(()),
    };
    bail!("Image {name} exists already and is another one: {difference}. Choose another --name, or delete it")
}

/// The Image that is uploaded.
struct Place {
    client: Client,
    images: TypedApi<Image>,
    namespace: String,
    name: String,
    uid: String,
    awaited: Awaited,
    progress: Progress,
    outage: Outage,
}

impl Place {
    async fn read(&self) -> anyhow::Result<Image> {
        let name = &self.name;
        let found = self.images.get_opt(name).await.with_context(|| format!("reading Image {name}"))?;
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(&self.uid));
        found.with_context(|| format!("Image {name} was deleted meanwhile"))
    }

    /// The next step, as the control plane has it now.
    async fn look(&self) -> anyhow::Result<Next> {
        let image = self.read().await?;
        let server = match self.awaited.look(&image) {
            Ok(Seen::Ready) => return Ok(Next::Done),
            Ok(Seen::Wait) => return Ok(Next::Wait),
            Ok(Seen::Upload(server)) => server,
            Err(why) => bail!("{why}"),
        };
        let audience = upload_audience(&self.namespace, &self.name, &self.uid);
        let ticket = ticket(&self.client, &self.namespace, UPLOAD_ACCOUNT, audience).await?;
        Ok(Next::Upload(Box::new(Target { server, path: upload_path(&self.namespace, &self.name), ticket })))
    }
}

#[async_trait]
impl UploadPlace for Place {
    type Error = anyhow::Error;

    async fn next(&self) -> anyhow::Result<Next> {
        let next = self.look().await;
        if next.is_err() {
            self.progress.end();
        }
        Ok(self.outage.answer(next)?.unwrap_or(Next::Wait))
    }

    fn progress(&self, done: u64) {
        self.progress.show(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn options(extra: &[&str]) -> ImagePushOptions {
        let words = ["berth", "image", "push", "disk.qcow2", "--name", "golden"];
        let cli = crate::cli::Cli::try_parse_from(words.iter().chain(extra)).expect("options");
        let crate::cli::Command::Image(options) = cli.command else { panic!("another command") };
        let crate::cli::ImageAction::Push(options) = options.action else { panic!("another action") };
        options
    }

    #[test]
    fn an_image_of_another_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.qcow2");
        std::fs::write(&path, "abc").expect("a file");
        let file = measure(&path, None).expect("measured");
        let wanted = spec(&options(&[]), &file);
        assert_eq!(wanted.source.upload, Some(ImageUpload { size: 3 }));
        let refused = |other: ImageSpec| {
            check_same(&Image::new("golden", other), &wanted).expect_err("refused").to_string()
        };
        assert!(check_same(&Image::new("golden", wanted.clone()), &wanted).is_ok());
        std::fs::write(&path, "abcd").expect("changed");
        let other = measure(&path, None).expect("measured");
        assert!(refused(spec(&options(&[]), &other)).contains("it is of another file"));
        assert!(refused(spec(&options(&["--format", "raw"]), &file)).contains("another format"));
        assert!(refused(spec(&options(&["--compression", "xz"]), &file)).contains("another compression"));
        let mut from_url = wanted.clone();
        from_url.source = ImageSource {
            url: Some("http://a/b".to_owned()),
            sha256: wanted.source.sha256.clone(),
            ..ImageSource::default()
        };
        assert!(refused(from_url).contains("not an uploaded image"));
    }
}
