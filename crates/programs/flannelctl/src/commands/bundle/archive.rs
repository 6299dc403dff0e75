//! An archive as `tar xzf` reads it.

use std::io::{self, Seek as _, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Of one file; more of it is cut off in its middle.
const MAX_FILE_BYTES: usize = 4 << 20;
/// Of all together, before they are compressed.
const MAX_ARCHIVE_BYTES: usize = 32 << 20;
const BLOCK: usize = 512;
/// Of the ends of a file that is cut: what is new is at its end.
const HEAD: usize = 1 << 20;

pub(super) struct Archive {
    out: GzEncoder<std::fs::File>,
    directory: String,
    time: i64,
    files: usize,
    bytes: usize,
}

impl Archive {
    pub(super) fn new(file: std::fs::File, directory: String, time: i64) -> Self {
        let out = GzEncoder::new(file, Compression::default());
        Self { out, directory, time, files: 0, bytes: 0 }
    }

    /// A name must be short: below a hundred letters with the directory.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let text = bounded(text, MAX_FILE_BYTES.min(MAX_ARCHIVE_BYTES.saturating_sub(self.bytes)));
        let path = format!("{}/{name}", self.directory);
        self.out.write_all(&header(&path, text.len(), self.time))?;
        self.out.write_all(text.as_bytes())?;
        let rest = text.len().next_multiple_of(BLOCK) - text.len();
        self.out.write_all(&[0; BLOCK][..rest])?;
        self.files += 1;
        self.bytes += text.len();
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<(usize, u64)> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        let mut file = self.out.finish()?;
        file.flush()?;
        Ok((self.files, file.stream_position()?))
    }
}

fn bounded(text: &str, largest: usize) -> String {
    if text.len() <= largest {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(HEAD.min(largest / 2));
    let tail = text.ceil_char_boundary(text.len() - (largest - head).min(text.len()));
    format!("{}\n… {} bytes are left out …\n{}", &text[..head], tail - head, &text[tail..])
}

fn header(path: &str, size: usize, time: i64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    let path = &path.as_bytes()[..path.len().min(100)];
    put(0, path);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", time.max(0)).as_bytes());
    // The sum is taken with blanks in its own place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_keeps_its_beginning_and_its_end() {
        assert_eq!(bounded("short", 100), "short");
        let long = format!("begin{}é{}end", "a".repeat(1000), "b".repeat(1000));
        let text = bounded(&long, 200);
        assert!(text.starts_with("begin") && text.ends_with("end"), "{text}");
        assert!(text.contains("bytes are left out") && text.len() < 300, "{text}");
        assert!(bounded(&"é".repeat(500), 0).contains("left out"));
    }
}
