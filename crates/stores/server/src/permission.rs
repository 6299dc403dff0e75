//! Permissions of clients. Leases have their own rules, in the lease state: a node changes its own alone.

use http::{Method, StatusCode};

use crate::answer::Fault;
use crate::lease_state::Who;
use crate::route::{Query, Route};

pub(crate) fn check(who: &Who, route: &Route, method: &Method, query: &Query) -> Result<(), Fault> {
    let reads = *method == Method::GET;
    if !reads && who.only_reads() {
        let name = who.name.as_deref().unwrap_or("this client");
        let text = format!("{name} may not do this: its token is for reading");
        return Err(Fault::new(StatusCode::FORBIDDEN, "reads-only", text));
    }
    if !who.admin && needs_operator(route, method, query) {
        let text = match who.name.as_deref() {
            Some(name) => format!(
                "{name} may not do this: it takes the token or the certificate of an operator"
            ),
            None => NEEDS_LOCAL_ROOT.to_owned(),
        };
        return Err(Fault::new(StatusCode::FORBIDDEN, "not-an-operator", text));
    }
    Ok(())
}

/// Answer of a server without authentication to what needs an operator.
const NEEDS_LOCAL_ROOT: &str = "this server has no tokens, and takes this from root on its own machine alone: run it there, \
                             or start the server with listen-token-file and send an operator's token (flannelctl pki \
                             token NAME --admin)";

/// Whether it needs an operator, since it changes more than a node's own lease.
pub(crate) fn needs_operator(route: &Route, method: &Method, query: &Query) -> bool {
    match route {
        Route::Config(_) | Route::Reservations(_) | Route::Reservation(..) => {
            *method != Method::GET
        }
        Route::Request(..) | Route::Answers(..) => true,
        Route::Lease(..) => query.import,
        _ => false,
    }
}
