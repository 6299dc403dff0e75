//! Compute Engine's API v1 and its metadata server.
//!
//! Shapes: the resources routes, instances and globalOperations of the "Compute Engine API" reference, its errors
//! ("Troubleshooting API errors"), and "View and query VM metadata".

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use super::cloud::{PROJECT, State, TableRoute, ZONE};
use super::http::{Request, Response, form};

const TOKEN: &str = "ya29.token-0123456789";
/// Of a service account that is nowhere: for tests alone.
const KEY: &str = "\
    MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQC3febBzf8SWg9G6PzQKuq5y7jiTLd6CWCV6vRIKvfXJqYX\
    u+ayzpP7yCX2xc0ZLP1pCapvnfqbdU1Wb36rroKZujwd/NBlx1ttjFwLA8qFA+DM2w7UxWlW+8ocjVmZs9JTDaUEvG91tTN5\
    nk5S814FegMBYyQj1MOdyOG9A/JmMhyYv28PpaH9vF/Qvuf8BAtZzQFtG6Tnqk6i9e38Ua12M01mJ3KbOT9M/NvQokQRyXRz\
    th1Ak/nzViYDQa28H66q96DCps0a/bOlYvo8rOkt1VqSUknUZbMHrMm9vpjtp9yDXqhAw2drokJcB1Dkq0O55qTKMDIGzgnu\
    03tq3cI1AgMBAAECggEADou3PYFSOVb005L4KZthWKGu8heRSuYP50qFG2x2kbJxY7vERcPtBL5gzg9vmxGPNCKtRWRhX638\
    l7/Ga58toLib9+eY8JyNYaGJEWF3TjSYvzyVUCYnG9thcgJ9ihrwbx+Lh5TVhB/9aOR1Aovi1e3Oa697h7Cf4jPwuy5jKpkn\
    cx0oSt17dzSpfmshtCkYiK5mrYV4ullBsw417ia322cP6VXsy6GtD06gWXFLynMRKxSrlmSJhx3/gneImtX4M2mSP8hA+0+b\
    rNilNq5PQUPD50A3IGXdHQPwZBU/G775tbf2rdMSG+6GRLvBjQqxzi+37qBrk+WziWs6zZ7FYQKBgQDlNJEhhSEEvZqWniKQ\
    VnOIZAXrME9KnCZiTHPS6I5O5Bt1SjmBZXFpGStjA0q7O/JULCgNUTRtXLOt53Qly0nabOMbV+FtKBO0gTGtSJsCOx32lkmv\
    XnMThuqvLantxZCzG/L9afHhwNEHq2oJedD+75oT/v6PgxNmFrJ3Bt4bVQKBgQDM8UO0nNKgS92aYbl4fKnEpLKVMCOrX/QF\
    8imbb2JYUatGLxTHA9D+GrP8JLA7UyGJ/lB/BjGwjVhKYeVA9ya2pVlKNQX2XCmmObj9pxAkyRobNzhlA/xUb/C2AI7pkJNd\
    D2F/N0NzdbEBXpTQbSTnh4RT3zHfAnPe9PqoRuXLYQKBgQDe1xXHNizc9A5pI4PNOxAGaeDLQWPF0T0MUvJE+q7pCqObjDeO\
    k3cIzFy/XgL5OJYouemS0QGc1gUnLaFh4VyDTVwcSHu16cIGu5j1tWJnb9x40rL/Gl/de02OVWIh9vPw/1pmgOuXJiTURRbJ\
    8bJ9OaxehosuMizZE3YdfQLSJQKBgCXtzOsDTxPtloC471t2LvE+zfJAa4mPA5mKHNswfRH9Y2Zk1kKS2T398SuMGrWQCBgC\
    4iDwI4gaUKnLfmNMmnSZG3JZZ9YVbnveGPeQ0LMOKO+6g4xmdW+nG/SDG+/sGunRK+kgcDJRKMYpG/+LA5Z6BSqElzU/vfQY\
    gL9eB69hAoGBAJHVMF87P8LtFvXISfZCmjPIRUjjTUkk3kZNqf7hD6CBHObNP7VZ5k6UEVZAPlcl+fkNpIdvfmy4+7z11+5Y\
    cU7sAQBH61BZrlmklFaUeVvjZepcG/fqz/x3/pha+n08TvAy1R4qghHtiHtc5sgXx/n0nEEx5Mv98b7GAAO0rorv";
const ACCOUNT: &str = "flannel@project-1.iam.gserviceaccount.com";
const API: &str = "https://www.googleapis.com/compute/v1";

pub(super) fn answer(state: &mut State, number: u16, request: &Request) -> Response {
    if let Some(path) = request.path.strip_prefix("/computeMetadata/v1") {
        return metadata(state, number, path, request);
    }
    if request.path == "/token" {
        return exchange(state, request);
    }
    let Some(path) = request.path.strip_prefix(&format!("/compute/v1/projects/{PROJECT}/")) else {
        return error(404, "notFound", "Not found");
    };
    let words: Vec<&str> = path.split('/').collect();
    let kind = if words[0] == "zones" { words[2] } else { words[1] };
    let call = format!("{} {kind}", request.method);
    let signed = if request.header("authorization") == format!("Bearer {TOKEN}") {
        Ok(())
    } else {
        let text = "Request had invalid authentication credentials. Expected OAuth 2 access token.";
        Err(error(401, "authError", text))
    };
    let too_much = || error(403, "rateLimitExceeded", "Rate Limit Exceeded");
    let denied = || {
        let text = format!(
            "Required 'compute.routes.create' permission for 'projects/{PROJECT}/global/routes/x'"
        );
        error(403, "forbidden", &text)
    };
    if let Err(error) = state.admit(&call, signed, too_much, denied) {
        return error;
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

/// The key file of a service account, whose tokens are to be asked for at this address.
pub fn key_file(token_uri: &str) -> String {
    json!({
        "type": "service_account", "project_id": PROJECT, "private_key_id": "key-1",
        "private_key": format!("-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n"),
        "client_email": ACCOUNT, "client_id": "1", "token_uri": token_uri,
    })
    .to_string()
}

/// "Using OAuth 2.0 for Server to Server Applications": a token for an assertion that the service account has signed.
fn exchange(state: &mut State, request: &Request) -> Response {
    state.calls.push("token".to_owned());
    let question = form(&request.body);
    assert_eq!(question["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
    let (signed, signature) = question["assertion"].rsplit_once('.').unwrap();
    let (header, claims) = signed.split_once('.').unwrap();
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let read = |text: &str| serde_json::from_slice::<Value>(&decode(text)).unwrap();
    let (header, claims) = (read(header), read(claims));
    assert_eq!((&header["alg"], &header["kid"]), (&json!("RS256"), &json!("key-1")));
    let pair = RsaKeyPair::from_pkcs8(&STANDARD.decode(KEY).unwrap()).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public().as_ref());
    let good = public.verify(signed.as_bytes(), &decode(signature)).is_ok();
    let now = jiff::Timestamp::now().as_second();
    let (begin, end) = (claims["iat"].as_i64().unwrap(), claims["exp"].as_i64().unwrap());
    let in_time = (now - begin).abs() < 300 && end > now && end - begin <= 3600;
    if !good || !in_time || claims["iss"] != ACCOUNT {
        state.forged += 1;
        let body = json!({"error": "invalid_grant", "error_description": "Invalid JWT Signature."});
        return Response::of(400, body.to_string());
    }
    assert_eq!(claims["scope"], "https://www.googleapis.com/auth/compute");
    assert!(claims["aud"].as_str().unwrap().ends_with("/token"));
    let body = json!({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"});
    Response::ok(body.to_string())
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
