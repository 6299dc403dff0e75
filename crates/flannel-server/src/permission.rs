//! Who may do what. Leases have their own rules, in the lease state: a node changes its own alone.

use crate::lease_state::{Addresses, Who};
use http::{Method, StatusCode};

use crate::answer::Fault;
use crate::route::{Query, Route};

pub(crate) fn check(who: &Who, route: &Route, method: &Method, query: &Query) -> Result<(), Fault> {
    let reads = *method == Method::GET;
    if !reads && who.addresses == Addresses::Nothing {
        let name = who.name.as_deref().unwrap_or("this client");
        let text = format!("{name} may not do this: its token is for reading");
        return Err(Fault::new(StatusCode::FORBIDDEN, "reads-only", text));
    }
    let for_operators = match route {
        Route::Config(_) | Route::Reservations(_) | Route::Reservation(..) => !reads,
        Route::Request(..) | Route::Answers(..) => true,
        Route::Lease(..) => query.import,
        _ => false,
    };
    if for_operators && !who.admin {
        let name = who.name.as_deref().unwrap_or("this client");
        let text =
            format!("{name} may not do this: it takes the token or the certificate of an operator");
        return Err(Fault::new(StatusCode::FORBIDDEN, "not-an-operator", text));
    }
    Ok(())
}
