//! The subnet file: as the CNI plugin needs it, as flanneld remembers by it, and as it writes it.

use std::path::Path;

use flannel_lease::SubnetFile;

pub(crate) fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let path = Path::new("subnet.env");
    if let Err(error) = SubnetFile::parse_complete(&text, path) {
        assert!(error.contains("subnet.env"));
    }
    let (file, _) = SubnetFile::parse(&text);
    let written = file.render();
    let (again, problems) = SubnetFile::parse(&written);
    assert_eq!((&again, problems.len()), (&file, 0), "{written}");
}
