//! `berth reset` and `berth nmi`: the buttons of a machine, pressed by its host.

use anyhow::bail;
use berth_api::{console::ConsoleUse, guest_access::HostMessage};

use super::session::Session;
use crate::cli::ButtonOptions;

/// Presses the button of a guest that runs.
///
/// *Errors:* it does not run, or the user has no right to it.
pub(in crate::commands) async fn press(options: ButtonOptions, wanted: ConsoleUse) -> anyhow::Result<()> {
    let mut session = Session::open(&options.target, wanted).await?;
    match session.next().await? {
        HostMessage::End => Ok(()),
        HostMessage::Error(text) => bail!("{text}"),
        _ => bail!("the host sent an unexpected message: its version of berth may differ from this one"),
    }
}
