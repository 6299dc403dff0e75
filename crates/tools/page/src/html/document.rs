//! The whole document, around the parts that change.

use std::fmt::Write as _;

use flannel_lease::NetworkName;

use super::overview::{list, pages};
use super::text::{InAddress, Text};
use super::{network_query, parts};
use crate::collector::Collector;
use crate::gate::KEY;
use crate::health::Health;
use crate::page::PageView;
use crate::picture::Picture;

/// Draws the document; `None` if there is no such node.
pub(crate) fn document(
    picture: &Picture,
    collector: &Collector,
    shown: &PageView,
    networks: &[NetworkName],
) -> Option<String> {
    if let Some(subnet) = &shown.node
        && picture.read.is_some()
        && !picture.nodes.contains_key(subnet)
    {
        return None;
    }
    let all = parts(picture, collector, shown);
    let part = |name: &str| {
        all.iter().find(|(id, _)| *id == name).map(|(_, html)| html.as_str()).unwrap_or_default()
    };
    let mut html = head(title(picture, shown), true);
    let _ = write!(
        html,
        "<body data-node=\"{}\" data-network=\"{}\"><a class=\"skip\" href=\"#main\">To the content</a>\
         <header class=\"top\"><a class=\"brand\" href=\"/{}\"><img src=\"/page/icon.svg\" alt=\"\" width=\"24\" \
         height=\"24\">flannel</a>{}<p id=\"about\">{}</p><p id=\"live\" class=\"js-only\" role=\"status\">\
         </p></header><main id=\"main\">",
        Text(shown.node.as_ref().map(ToString::to_string).unwrap_or_default()),
        Text(shown.network.as_ref().map(ToString::to_string).unwrap_or_default()),
        Text(network_query(shown, '?')),
        choice(networks, collector),
        part("about"),
    );
    match shown.node {
        Some(_) => {
            let _ = write!(html, "<div id=\"node\">{}</div>", part("node"));
        }
        None => {
            let _ = write!(
                html,
                "<section id=\"verdict\" aria-label=\"Verdict\" aria-live=\"polite\">{}</section>\
                 <div class=\"columns\"><div class=\"wide\">{}{}</div><div class=\"narrow\">\
                 <section class=\"card\" id=\"problems\" aria-label=\"What is wrong\">{}</section>\
                 <section class=\"card\" id=\"pool\" aria-label=\"Addresses\">{}</section>\
                 <section class=\"card\" id=\"timeline\" aria-label=\"What happened\">{}</section></div></div>",
                part("verdict"),
                nodes(picture, shown),
                mesh(),
                part("problems"),
                part("pool"),
                part("timeline"),
            );
        }
    }
    html += "</main></body></html>\n";
    Some(html)
}

fn title(picture: &Picture, shown: &PageView) -> String {
    let name = shown.node.and_then(|subnet| picture.nodes.get(&subnet)).map(|node| node.name());
    name.map_or_else(|| "flannel".to_owned(), |name| format!("{name} · flannel"))
}

fn head(title: String, is_live: bool) -> String {
    let live = match is_live {
        true => {
            "<noscript><meta http-equiv=\"refresh\" content=\"30\"></noscript>\
                 <script src=\"/page/page.js\" defer></script>"
        }
        false => "",
    };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"/page/icon.svg\">\
         <link rel=\"stylesheet\" href=\"/page/page.css\">{live}</head>",
        Text(title)
    )
}

fn choice(networks: &[NetworkName], collector: &Collector) -> String {
    if networks.len() < 2 {
        return String::new();
    }
    let mut html = "<nav class=\"networks\" aria-label=\"Networks\">".to_owned();
    for name in networks {
        let current = if *name == collector.network { " aria-current=\"page\"" } else { "" };
        let shown = if name.is_default() { "default" } else { name.as_str() };
        let _ =
            write!(html, "<a href=\"/?network={}\"{current}>{}</a>", InAddress(name), Text(shown));
    }
    html += "</nav>";
    html
}

fn nodes(picture: &Picture, shown: &PageView) -> String {
    let mut options = "<option value=\"\">every state</option>".to_owned();
    for health in Health::ALL {
        let selected = if shown.health == Some(health) { " selected" } else { "" };
        let _ = write!(
            options,
            "<option value=\"{}\"{selected}>{}</option>",
            health.key(),
            health.words_of(1)
        );
    }
    let network = match &shown.network {
        Some(name) => format!("<input type=\"hidden\" name=\"network\" value=\"{}\">", Text(name)),
        None => String::new(),
    };
    format!(
        "<section class=\"card\" id=\"nodes\" aria-label=\"Nodes\"><div class=\"row\"><h2>Nodes</h2>\
         <form id=\"filter\" method=\"get\" action=\"/\" role=\"search\">{network}\
         <label class=\"hidden\" for=\"q\">Look for a name, a subnet or an address</label>\
         <input id=\"q\" name=\"q\" type=\"search\" placeholder=\"name, subnet or address\" value=\"{}\" \
         autocomplete=\"off\" spellcheck=\"false\"><label class=\"hidden\" for=\"state\">State</label>\
         <select id=\"state\" name=\"state\">{options}</select><button class=\"no-js\">Find</button></form></div>\
         <div class=\"js-only\"><p id=\"view\" class=\"note\"></p>\
         <canvas id=\"map\" tabindex=\"0\" role=\"img\" aria-label=\"Map of the nodes\" aria-describedby=\"map-help\">\
         </canvas><p id=\"map-help\" class=\"note\">Each square is a node, in the order of their subnets. Arrow keys \
         move, Enter opens; the list below says the same.</p><p id=\"pointed\" class=\"pointed\" \
         aria-live=\"polite\"></p></div>\
         <p id=\"found\" class=\"note\" role=\"status\"></p>\
         <div id=\"list\" class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"List of nodes\">\
         <table><thead><tr><th scope=\"col\">State</th><th scope=\"col\">Node</th><th scope=\"col\">Subnet</th>\
         <th scope=\"col\">Address</th><th scope=\"col\">Why</th></tr></thead><tbody>{}</tbody></table></div>{}\
         </section>",
        Text(&shown.search),
        list(picture, shown),
        pages(picture, shown)
    )
}

fn mesh() -> &'static str {
    "<section class=\"card js-only\" id=\"mesh\" aria-label=\"Who reaches whom\" hidden><h2>Who reaches whom</h2>\
     <p class=\"note\" id=\"mesh-note\"></p><canvas id=\"matrix\" role=\"img\" aria-label=\"Matrix of nodes\">\
     </canvas><p id=\"pair\" class=\"pointed\"></p><div id=\"mesh-legend\" class=\"legend\"></div></section>"
}

/// Form that asks for the token of an operator. Its hidden user name, which is not sent, is for password managers.
pub(crate) fn form(problem: Option<&str>) -> String {
    let problem = problem.map(|text| format!("<p class=\"bad\" role=\"alert\">{}</p>", Text(text)));
    format!(
        "{}<body class=\"enter\"><main id=\"main\"><form class=\"card\" method=\"post\" action=\"/page/enter\">\
         <h1><img src=\"/page/icon.svg\" alt=\"\" width=\"32\" height=\"32\">flannel</h1>{}\
         <input type=\"text\" autocomplete=\"username\" value=\"operator\" hidden>\
         <label for=\"token\">Token of an operator</label><input id=\"token\" name=\"{KEY}\" type=\"password\" \
         required autocomplete=\"current-password\" autofocus><button>Enter</button><p class=\"note\">\
         <code>flannelctl pki token NAME --admin</code> makes one. The browser keeps a cookie that scripts cannot \
         read, until it is closed.</p></form></main></body></html>\n",
        head("flannel".to_owned(), false),
        problem.unwrap_or_default()
    )
}

pub(crate) fn nothing() -> String {
    format!(
        "{}<body class=\"enter\"><main id=\"main\"><div class=\"card\"><h1>There is nothing here</h1>\
         <p>The node may have gone. <a href=\"/\">All nodes</a></p></div></main></body></html>\n",
        head("flannel".to_owned(), false)
    )
}
