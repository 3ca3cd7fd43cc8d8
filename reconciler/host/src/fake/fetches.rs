//! Copies of volumes between fake hosts: of their sizes, with the name of the volume as data.

use std::sync::Arc;

use async_trait::async_trait;

use super::FakeSystem;
use super::state::Volume;
use crate::{
    Arrival, CopiedFile, CopiedPart, NewFetch, NewVolume, Progress, RemoteError, RemoteVolume, Result,
    SystemError, VolumeFacts, VolumeReader,
};

/// The reader of a file that has its volume's id as data.
#[derive(Debug)]
struct FakeReader {
    about: CopiedFile,
    part: Option<CopiedPart>,
}

#[async_trait]
impl VolumeReader for FakeReader {
    fn about(&self) -> &CopiedFile {
        &self.about
    }

    async fn next(&mut self) -> Result<Option<CopiedPart>> {
        Ok(self.part.take())
    }
}

impl FakeSystem {
    pub(super) fn arrival_of(&self, id: &str) -> Option<Arrival> {
        let state = self.state();
        state.arrivals.get(id).filter(|_| state.volumes.contains_key(id)).cloned()
    }

    pub(super) async fn fetched(
        &self,
        new: &NewFetch,
        from: Arc<dyn RemoteVolume>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        let failed = |error: RemoteError| {
            let (RemoteError::Unreachable(detail) | RemoteError::Refused(detail)) = error;
            SystemError::Download { url: format!("volume {} from host {}", new.id, new.from), detail }
        };
        let mut opened = from.open(0).await.map_err(failed)?;
        while let Some(part) = opened.parts.next().await.map_err(failed)? {
            progress(u64::try_from(part.bytes.len()).unwrap_or(0), Some(opened.about.taken));
        }
        self.state().volumes.remove(&new.id);
        let made = self.make_volume(&NewVolume {
            pool: new.pool.clone(),
            id: new.id.clone(),
            size: Some(new.size),
            base: new.base.clone(),
            snapshot: None,
            file: None,
            thick: new.thick,
            shared: false,
            owner: new.owner.clone(),
            encryption: None,
        })?;
        self.state().arrivals.insert(new.id.clone(), new.arrival.clone());
        Ok(made)
    }

    pub(super) fn left_file(
        &self,
        pool: &str,
        id: &str,
        offset: u64,
    ) -> Result<Option<Box<dyn VolumeReader>>> {
        let state = self.state();
        state.ensure_there(pool)?;
        let Some(Volume { facts }) = state.volumes.get(id) else { return Ok(None) };
        let bytes = id.as_bytes().to_vec();
        let count = u64::try_from(bytes.len()).unwrap_or(0);
        let part = (offset == 0).then_some(CopiedPart { offset: 0, bytes });
        let about = CopiedFile { length: count, taken: count, base: facts.base.clone(), tag: id.to_owned() };
        Ok(Some(Box::new(FakeReader { about, part })))
    }

    pub(super) fn remove_left(
        &self,
        pool: &str,
        id: &str,
        uid: Option<&str>,
        seen: Option<&Arrival>,
    ) -> Result<()> {
        let found = {
            let state = self.state();
            state.ensure_there(pool)?;
            state.volumes.get(id).map(|volume| (volume.facts.clone(), state.arrivals.get(id).cloned()))
        };
        let Some((facts, arrival)) = found else { return Ok(()) };
        if arrival.as_ref() != seen {
            return Ok(());
        }
        let is_open = self.is_open(&facts.path);
        let mut state = self.state();
        if is_open || facts.owner.uid.as_deref() != uid {
            state
                .violations
                .push(format!("volume {id} removed while a machine has it open, or of another Disk"));
        }
        self.files.remove(&facts.path);
        state.volumes.remove(id);
        state.arrivals.remove(id);
        Ok(())
    }
}
