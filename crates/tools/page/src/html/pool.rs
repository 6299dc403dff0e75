//! The address pool as a picture without scripts: a square for each subnet, or for several.

use std::fmt::Write as _;

use super::text::{Text, number};
use crate::pool::{Cell, PoolView};

const SIZE: usize = 12;

pub(super) fn draw(pools: &[PoolView]) -> String {
    let mut html = "<h2>Addresses</h2>".to_owned();
    if pools.is_empty() {
        html += "<p class=\"calm\">There is no address range yet.</p>";
    }
    for pool in pools {
        one(&mut html, pool);
    }
    html
}

fn one(html: &mut String, pool: &PoolView) {
    let percent = pool.percent();
    let full = match percent {
        percent if percent > 0.0 && percent < 0.1 => "under 0.1".to_owned(),
        percent if percent < 10.0 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    };
    let _ = write!(
        html,
        "<div class=\"pool\"><p class=\"range\"><b class=\"mono\">{}</b> <span>{full} % taken</span></p>\
         <meter min=\"0\" max=\"100\" high=\"80\" optimum=\"0\" value=\"{percent:.2}\" \
         aria-label=\"How full {} is\">{full} %</meter>\
         <dl class=\"figures\">",
        Text(&pool.network),
        Text(&pool.network),
    );
    let figures = [
        Some(("leased", number(pool.leased))),
        pool.is_pool.then(|| ("reserved", number(pool.reserved))),
        Some(("free", number(pool.free()))),
        (pool.outside > 0).then(|| ("outside", number(pool.outside))),
    ];
    for (name, count) in figures.into_iter().flatten() {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{count}</dd></div>");
    }
    html.push_str("</dl>");
    squares(html, pool);
    let each = match pool.per_cell {
        _ if pool.cells.is_empty() => format!("subnets are /{}", pool.subnet_len),
        1 => format!("a square is one /{}", pool.subnet_len),
        many => format!("a square is {} subnets /{}", number(many), pool.subnet_len),
    };
    let _ = write!(
        html,
        "<p class=\"note\">{} to {}; {each}</p></div>",
        Text(&pool.first),
        Text(&pool.last)
    );
}

fn squares(html: &mut String, pool: &PoolView) {
    let count = pool.cells.len();
    if count == 0 {
        return;
    }
    // Wide rather than high.
    let columns = count.min(if count > 256 { 64 } else { 32 });
    let rows = count.div_ceil(columns);
    let _ = write!(
        html,
        "<svg class=\"squares\" role=\"img\" viewBox=\"0 0 {} {}\" aria-label=\"{} of {} subnets taken, {} of \
         them reserved\">",
        columns * SIZE,
        rows * SIZE,
        number(pool.taken()),
        number(pool.capacity),
        number(pool.reserved)
    );
    for (index, cell) in pool.cells.iter().enumerate() {
        let (x, y) = (index % columns * SIZE + 1, index / columns * SIZE + 1);
        let _ = write!(
            html,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" rx=\"2\" class=\"{}\">\
             <title>{}</title></rect>",
            class(cell, pool.per_cell),
            Text(title(cell, pool)),
            side = SIZE - 2,
        );
    }
    html.push_str("</svg>");
    let _ = write!(
        html,
        "<ul class=\"legend\"><li><i class=\"leased\"></i>leased</li>{}<li><i class=\"free\"></i>free</li></ul>",
        if pool.is_pool { "<li><i class=\"reserved\"></i>reserved</li>" } else { "" }
    );
}

fn class(cell: &Cell, per_cell: u128) -> &'static str {
    let taken = u128::from(cell.leased + cell.reserved);
    match () {
        () if taken == 0 => "free",
        () if cell.reserved > cell.leased => "reserved",
        () if taken * 4 > per_cell * 3 || per_cell == 1 => "leased",
        () if taken * 2 > per_cell => "leased most",
        () if taken * 4 > per_cell => "leased some",
        () => "leased few",
    }
}

fn title(cell: &Cell, pool: &PoolView) -> String {
    let taken = cell.leased + cell.reserved;
    match (pool.per_cell, taken) {
        (1, 0) => format!("{}: free", cell.first),
        (1, _) if cell.reserved > 0 => format!("{}: reserved for {}", cell.first, cell.owner),
        (1, _) => format!("{}: {}", cell.first, cell.owner),
        (many, _) => format!("{} and on: {taken} of {many} taken", cell.first),
    }
}
