//! The client against qemu-nbd, and against a server that does not follow the protocol.

mod hostile;
mod real;

/// Compiles only if tasks can use a client.
#[test]
fn the_futures_can_be_sent_between_threads() {
    fn assert_send<T: Send>(_: impl FnOnce(super::Client, Vec<u8>) -> T) {}
    assert_send(async |mut client: super::Client, mut data: Vec<u8>| {
        client.read_at(0, &mut data).await?;
        client.write_at(0, &data).await?;
        client.write_zeroes(0, client.size()).await?;
        client.extents(0, client.size()).await?;
        client.flush().await?;
        client.disconnect().await
    });
    let connect = |path: &'static str| super::Client::connect(path.as_ref(), "disk");
    assert_send(move |_, _| connect("socket"));
}
