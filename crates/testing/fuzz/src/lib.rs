//! Fuzz targets: what comes from outside, thrown at the code that reads it.
//!
//! Each is a function that panics when a promise is broken, whatever the bytes. Tests call it with real documents
//! (`seeds/`) and with mutations of these that follow from a number, so that every run sees the same;
//! `scripts/fuzz` calls it with what libFuzzer thinks of.

mod mutate;
mod targets;

use std::path::{Path, PathBuf};
use std::{fs, io};

pub use mutate::Mutator;
pub use targets::TARGETS;

/// Code that reads what others write, and what must be true of it.
pub struct Target {
    pub name: &'static str,
    /// Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// How many mutations a test tries: as many as take a second or two.
    pub mutations: u64,
}

impl Target {
    pub fn of_name(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Real documents, by name.
    pub fn seeds(&self) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(self.name);
        let mut seeds = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            seeds.push((path.clone(), fs::read(path)?));
        }
        seeds.sort();
        Ok(seeds)
    }

    /// The words of the format, which random bytes would not hit upon.
    pub fn words(&self) -> io::Result<Vec<Vec<u8>>> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("words").join(self.name);
        Ok(mutate::dictionary(&fs::read_to_string(file)?))
    }
}
