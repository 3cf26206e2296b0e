//! Links the unwinder into the program where the compiler offers it as an archive: one shared
//! library less to find, map and bind at each start, which for a short run is a good part of it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let is_native = std::env::var("HOST") == std::env::var("TARGET");
    if !is_native || target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let Ok(answer) = asked else { return };
    // A compiler that has none repeats the bare name.
    let archive = String::from_utf8_lossy(&answer.stdout);
    let archive = Path::new(archive.trim());
    if let Some(folder) = archive.parent().filter(|_| archive.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static=gcc_eh");
    }
}
