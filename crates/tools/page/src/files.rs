//! Files of the page besides HTML, as parts of the program: nothing is installed beside it, nothing fetched.

pub(crate) fn find(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/page/page.css" => (include_str!("files/page.css"), "text/css; charset=utf-8"),
        "/page/page.js" => (include_str!("files/page.js"), "text/javascript; charset=utf-8"),
        "/page/icon.svg" => (include_str!("files/icon.svg"), "image/svg+xml"),
        _ => return None,
    })
}
