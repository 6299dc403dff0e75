//! Compute Engine's API v1 and its metadata server.
//!
//! Shapes: the resources routes, instances and globalOperations of the "Compute Engine API" reference, its errors
//! ("Troubleshooting API errors"), and "View and query VM metadata".

use serde_json::{Value, json};

use super::cloud::{PROJECT, State, TableRoute, ZONE};
use super::http::{Request, Response, form};

const TOKEN: &str = "ya29.token-0123456789";
const API: &str = "https://www.googleapis.com/compute/v1";

pub(super) fn answer(state: &mut State, number: u16, request: &Request) -> Response {
    if let Some(path) = request.path.strip_prefix("/computeMetadata/v1") {
        return metadata(state, number, path, request);
    }
    let Some(path) = request.path.strip_prefix(&format!("/compute/v1/projects/{PROJECT}/")) else {
        return error(404, "notFound", "Not found");
    };
    let words: Vec<&str> = path.split('/').collect();
    let kind = if words[0] == "zones" { words[2] } else { words[1] };
    let call = format!("{} {kind}", request.method);
    state.calls.push(call.clone());
    if request.header("authorization") != format!("Bearer {TOKEN}") {
        state.forged += 1;
        let text = "Request had invalid authentication credentials. Expected OAuth 2 access token.";
        return error(401, "authError", text);
    }
    if state.is_too_much() {
        return error(403, "rateLimitExceeded", "Rate Limit Exceeded");
    }
    if state.denied.contains(&call) {
        let text = format!(
            "Required 'compute.routes.create' permission for 'projects/{PROJECT}/global/routes/x'"
        );
        return error(403, "forbidden", &text);
    }
    match (request.method.as_str(), &words[..]) {
        ("GET", ["global", "routes"]) => list(state, request),
        ("POST", ["global", "routes"]) => {
            insert(state, &serde_json::from_str(&request.body).unwrap())
        }
        ("DELETE", ["global", "routes", name]) => {
            let at = state.tables[0].routes.iter().position(|route| route.id == *name);
            let Some(at) = at else {
                let text =
                    format!("The resource 'projects/{PROJECT}/global/routes/{name}' was not found");
                return error(404, "notFound", &text);
            };
            state.tables[0].routes.remove(at);
            operation("RUNNING")
        }
        ("GET", ["global", "operations", "operation-1"]) => operation("DONE"),
        ("GET", ["zones", ZONE, "instances", name]) => {
            match state.machines.values().find(|machine| machine.instance() == *name) {
                Some(machine) => {
                    let forwards = !state.checked[&machine.number];
                    Response::ok(json!({"canIpForward": forwards}).to_string())
                }
                None => error(404, "notFound", "The resource was not found"),
            }
        }
        _ => error(404, "notFound", "Not found"),
    }
}

fn metadata(state: &State, number: u16, path: &str, request: &Request) -> Response {
    if request.header("metadata-flavor") != "Google" {
        return Response::of(403, "");
    }
    let machine = &state.machines[&number];
    let text = match path {
        "/project/project-id" => PROJECT.to_owned(),
        "/instance/zone" => format!("projects/123/zones/{ZONE}"),
        "/instance/name" => machine.instance(),
        "/instance/network-interfaces/" => {
            assert_eq!(request.query, "recursive=true");
            let v6: Vec<String> = machine
                .addresses
                .iter()
                .filter(|ip| ip.is_ipv6())
                .map(ToString::to_string)
                .collect();
            json!([{
                "accessConfigs": [{"externalIp": "203.0.113.7", "type": "ONE_TO_ONE_NAT"}],
                "ip": machine.addresses[0].to_string(), "ipv6s": v6, "mac": machine.mac(), "mtu": 1460,
                "network": "projects/123/networks/vpc-1",
            }])
            .to_string()
        }
        "/instance/service-accounts/default/token" if state.role => {
            json!({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}).to_string()
        }
        _ => return Response::of(404, ""),
    };
    Response::ok(text)
}

fn error(status: u16, reason: &str, message: &str) -> Response {
    let body = json!({"error": {
        "code": status, "message": message,
        "errors": [{"message": message, "domain": "global", "reason": reason}],
    }});
    Response::of(status, body.to_string())
}

fn operation(status: &str) -> Response {
    let body = json!({"kind": "compute#operation", "name": "operation-1", "status": status});
    Response::ok(body.to_string())
}

fn list(state: &State, request: &Request) -> Response {
    let mut items = vec![
        json!({
            "name": "default-route-1", "destRange": "0.0.0.0/0", "priority": 1000,
            "network": format!("{API}/projects/{PROJECT}/global/networks/vpc-1"),
            "nextHopGateway": format!("{API}/projects/{PROJECT}/global/gateways/default-internet-gateway"),
        }),
        json!({
            "name": "flannel-10-244-5-0-24-elsewhere", "destRange": "10.244.5.0/24", "priority": 1000,
            "network": format!("{API}/projects/{PROJECT}/global/networks/other-vpc-1x"),
            "nextHopInstance": format!("{API}/projects/{PROJECT}/zones/{ZONE}/instances/i-0001"),
        }),
    ];
    items.extend(state.tables[0].routes.iter().map(|route| {
        let mut item = json!({
            "kind": "compute#route", "name": route.id, "destRange": route.destination, "priority": 1000,
            "network": format!("{API}/projects/{PROJECT}/global/networks/vpc-1"),
            "nextHopInstance": route.next_hop, "routeType": "STATIC",
        });
        if !route.alive {
            let text = "Next hop instance was not found.";
            item["warnings"] = json!([{"code": "NEXT_HOP_INSTANCE_NOT_FOUND", "message": text}]);
        }
        item
    }));
    let question = form(&request.query);
    let start: usize = question
        .get("pageToken")
        .map_or(0, |token| token.trim_start_matches("page/").parse().unwrap());
    let end = (start + state.page).min(items.len());
    let mut body = json!({"kind": "compute#routeList", "items": items[start..end]});
    if end < items.len() {
        body["nextPageToken"] = json!(format!("page/{end}"));
    }
    Response::ok(body.to_string())
}

fn insert(state: &mut State, route: &Value) -> Response {
    let text = |name: &str| route[name].as_str().unwrap().to_owned();
    let (name, limit) = (text("name"), state.limit);
    assert_eq!(route["priority"], 1000);
    assert_eq!(text("network"), format!("projects/{PROJECT}/global/networks/vpc-1"));
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(name.len() <= 63 && name.chars().all(valid), "{name}");
    let routes = &mut state.tables[0].routes;
    if routes.iter().any(|other| other.id == name) {
        let text = format!("The resource 'projects/{PROJECT}/global/routes/{name}' already exists");
        return error(409, "alreadyExists", &text);
    }
    if routes.len() >= limit {
        return error(
            403,
            "quotaExceeded",
            &format!("Quota 'ROUTES' exceeded.  Limit: {limit}.0 globally."),
        );
    }
    routes.push(TableRoute {
        id: name,
        destination: text("destRange"),
        next_hop: format!("{API}/{}", text("nextHopInstance")),
        alive: true,
        enabled: true,
    });
    operation("RUNNING")
}
