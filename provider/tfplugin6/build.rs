//! Turns the protocol files into Rust without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["tfplugin6.proto", "plugin.proto", "health.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .generate_default_stubs(true)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
