//! The name servers of a `resolv.conf`, for the result.

use crate::protocol::Dns;

pub(super) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
        let values = || std::iter::once(value).chain(words).map(str::to_owned);
        match key {
            "nameserver" => dns.nameservers.push(value.to_owned()),
            "domain" => value.clone_into(&mut dns.domain),
            "search" => dns.search.extend(values()),
            "options" => dns.options.extend(values()),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_resolver_would() {
        let dns = parse(
            "# a\nnameserver 192.0.2.1\n ; b\nnameserver 192.0.2.2 x\ndomain example.com\nsearch a b\noptions ndots:5 rotate\nrubbish\n",
        );
        assert_eq!(dns.nameservers, ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(dns.domain, "example.com");
        assert_eq!(dns.search, ["a", "b"]);
        assert_eq!(dns.options, ["ndots:5", "rotate"]);
    }
}
