//! Alibaba Cloud's VPC API and its metadata service, in the hardened mode.
//!
//! Shapes: the examples of DescribeRouteTableList, DescribeRouteEntryList, CreateRouteEntry and DeleteRouteEntry in
//! the "Virtual Private Cloud API reference", and their error codes.

use std::collections::BTreeMap;

use base64::Engine as _;
use ring::hmac;
use serde_json::json;

use super::cloud::{NoPlace, REGION, ROLE, SUBNET, State, VPC, ZONE};
use super::http::{Request, Response, form};

const SESSION: &str = "ecs-session";

pub(super) fn answer(state: &mut State, number: u16, request: &Request) -> Response {
    if request.path.starts_with("/latest/") {
        return metadata(state, number, request);
    }
    let parameters = form(&request.body);
    let action = parameters.get("Action").cloned().unwrap_or_default();
    let signed = signature(state, request, &parameters);
    let too_much = || error(400, "Throttling.User", "Request was denied due to user flow control.");
    let denied = || {
        let text = "User not authorized to operate on the specified resource, or this API doesn't support RAM.";
        error(403, "Forbidden.RAM", text)
    };
    if let Err(error) = state.admit(&action, signed, too_much, denied) {
        return error;
    }
    match action.as_str() {
        "DescribeRouteTableList" => tables(state, &parameters),
        "DescribeRouteEntryList" => entries(state, &parameters),
        "CreateRouteEntry" | "DeleteRouteEntry" => change(state, &action, &parameters),
        _ => error(
            404,
            "InvalidAction.NotFound",
            "Specified api is not found, please check your url and method.",
        ),
    }
}

fn metadata(state: &State, number: u16, request: &Request) -> Response {
    if request.path == "/latest/api/token" {
        let asked = !request.header("x-aliyun-ecs-metadata-token-ttl-seconds").is_empty();
        return if asked { Response::ok(SESSION) } else { Response::of(400, "") };
    }
    if request.header("x-aliyun-ecs-metadata-token") != SESSION {
        return Response::of(403, "");
    }
    let machine = &state.machines[&number];
    let mac = machine.mac();
    let path = request.path.strip_prefix("/latest/meta-data/").unwrap_or_default();
    let of_mac = path.strip_prefix(&format!("network/interfaces/macs/{mac}/"));
    let addresses: Vec<String> =
        machine.addresses.iter().filter(|ip| ip.is_ipv4()).map(ToString::to_string).collect();
    let text = match (path, of_mac) {
        (_, Some("network-interface-id")) => machine.interface(),
        (_, Some("vswitch-id")) => SUBNET.to_owned(),
        (_, Some("private-ipv4s")) => format!("[{}]", addresses.join(",")),
        ("region-id", _) => REGION.to_owned(),
        ("zone-id", _) => ZONE.to_owned(),
        ("instance-id", _) => machine.instance(),
        ("vpc-id", _) => VPC.to_owned(),
        ("network/interfaces/macs/", _) => format!("{mac}/"),
        ("ram/security-credentials/", _) if state.role => ROLE.to_owned(),
        ("ram/security-credentials/node-role", _) if state.role => {
            let (id, secret, token) = state.keys.last().unwrap();
            json!({
                "AccessKeyId": id, "AccessKeySecret": secret, "Expiration": "2099-01-01T00:00:00Z",
                "SecurityToken": token, "LastUpdated": "2026-01-01T00:00:00Z", "Code": "Success"
            })
            .to_string()
        }
        _ => String::new(),
    };
    Response::of_path(text)
}

type Parameters = BTreeMap<String, String>;

/// Computed anew from what arrived: every parameter but the signature, encoded, in order.
fn signature(state: &State, request: &Request, parameters: &Parameters) -> Result<(), Response> {
    let id = &parameters["AccessKeyId"];
    let Some((_, secret, token)) = state.keys.iter().find(|(known, ..)| known == id) else {
        return Err(error(
            404,
            "InvalidAccessKeyId.NotFound",
            "Specified access key is not found.",
        ));
    };
    if parameters.get("SecurityToken").map(String::as_str).unwrap_or_default() != token {
        return Err(error(
            400,
            "InvalidSecurityToken.MismatchWithAccessKey",
            "Specified SecurityToken mismatches.",
        ));
    }
    for (name, value) in [
        ("SignatureMethod", "HMAC-SHA1"),
        ("SignatureVersion", "1.0"),
        ("Version", "2016-04-28"),
        ("Format", "JSON"),
    ] {
        assert_eq!(parameters.get(name).map(String::as_str), Some(value));
    }
    let time: Result<jiff::Timestamp, _> = parameters["Timestamp"].parse();
    let age = time.map(|time| (jiff::Timestamp::now().as_second() - time.as_second()).abs());
    if age.is_ok_and(|age| age > 900) {
        return Err(error(
            400,
            "InvalidTimeStamp.Expired",
            "Specified time stamp or date value is expired.",
        ));
    }
    let special = |text: &str| {
        let mut out = String::new();
        for byte in text.as_bytes() {
            match byte {
                b'-' | b'_' | b'.' | b'~' => out.push(char::from(*byte)),
                byte if byte.is_ascii_alphanumeric() => out.push(char::from(*byte)),
                byte => out += &format!("%{byte:02X}"),
            }
        }
        out
    };
    let signed = parameters.iter().filter(|(name, _)| *name != "Signature");
    let signed: Vec<String> =
        signed.map(|(name, value)| special(name) + "=" + &special(value)).collect();
    let text = [request.method.as_str(), "%2F", &special(&signed.join("&"))].join("&");
    let key =
        hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, (secret.clone() + "&").as_bytes());
    let computed = hmac::sign(&key, text.as_bytes());
    if base64::engine::general_purpose::STANDARD.encode(computed.as_ref())
        != parameters["Signature"]
    {
        let text = "Specified signature is not matched with our calculation.";
        return Err(error(400, "SignatureDoesNotMatch", text));
    }
    Ok(())
}

fn error(status: u16, code: &str, message: &str) -> Response {
    let body = json!({
        "RequestId": "7463B73D-35CC-4D19-A010-6B8D65D242EF", "HostId": "vpc.aliyuncs.com", "Code": code,
        "Message": message, "Recommend": "https://next.api.aliyun.com/troubleshoot"
    });
    Response::of(status, body.to_string())
}

fn tables(state: &State, parameters: &Parameters) -> Response {
    assert_eq!(parameters["VpcId"], VPC);
    let number: usize = parameters["PageNumber"].parse().unwrap();
    let start = (number - 1) * state.page;
    let page: Vec<_> = state.tables.iter().enumerate().skip(start).take(state.page).collect();
    let items: Vec<_> = page
        .into_iter()
        .map(|(index, table)| {
            json!({
                "RouteTableId": table.id, "VpcId": VPC, "RouterType": "VRouter", "Status": "Available",
                "RouteTableType": if index == 0 { "System" } else { "Custom" },
                "VSwitchIds": {"VSwitchId": table.subnets},
            })
        })
        .collect();
    let body = json!({
        "RequestId": "DF72F7BB", "TotalCount": state.tables.len(), "PageSize": state.page, "PageNumber": number,
        "RouterTableList": {"RouterTableListType": items},
    });
    Response::ok(body.to_string())
}

fn entries(state: &State, parameters: &Parameters) -> Response {
    let id = &parameters["RouteTableId"];
    let Some(table) = state.tables.iter().find(|table| table.id == *id) else {
        return error(
            404,
            "InvalidRouteTableId.NotFound",
            "The specified RouteTableId does not exist.",
        );
    };
    let mut items = vec![json!({
        "RouteEntryId": "rte-system", "DestinationCidrBlock": "192.168.0.0/16", "Type": "System",
        "Status": "Available", "IpVersion": "IPv4", "NextHops": {"NextHop": [{"NextHopType": "local", "NextHopId": ""}]},
    })];
    items.extend(table.routes.iter().map(|route| {
        json!({
            "RouteEntryId": route.id, "DestinationCidrBlock": route.destination, "Type": "Custom",
            "Status": "Available", "IpVersion": "IPv4", "RouteTableId": id,
            "NextHops": {"NextHop": [{"NextHopType": "Instance", "NextHopId": route.next_hop, "Weight": 0, "Enabled": 1}]},
        })
    }));
    let start: usize = parameters
        .get("NextToken")
        .map_or(0, |token| token.trim_start_matches("page-").parse().unwrap());
    let end = (start + state.page).min(items.len());
    let next = if end < items.len() { format!("page-{end}") } else { String::new() };
    let body = json!({
        "RequestId": "DC668356", "NextToken": next, "RouteEntrys": {"RouteEntry": items[start..end]},
    });
    Response::ok(body.to_string())
}

fn change(state: &mut State, action: &str, parameters: &Parameters) -> Response {
    let limit = state.limit;
    let id = &parameters["RouteTableId"];
    let Some(table) = state.tables.iter_mut().find(|table| table.id == *id) else {
        return error(
            404,
            "InvalidRouteTableId.NotFound",
            "The specified RouteTableId does not exist.",
        );
    };
    if action == "DeleteRouteEntry" {
        let entry = &parameters["RouteEntryId"];
        let there = table.routes.iter().position(|route| route.id == *entry);
        let Some(at) = there else {
            return error(
                404,
                "InvalidRouteEntry.NotFound",
                "The specified route entry does not exist.",
            );
        };
        table.routes.remove(at);
        return Response::ok(json!({"RequestId": "0ED8D006"}).to_string());
    }
    let (destination, hop) =
        (parameters["DestinationCidrBlock"].clone(), parameters["NextHopId"].clone());
    assert_eq!(parameters["NextHopType"], "Instance");
    let entry = format!("rte-{}", destination.replace(['.', '/'], "-"));
    match table.add(entry.clone(), destination, hop, limit) {
        Ok(()) => Response::ok(json!({"RequestId": "0ED8D006", "RouteEntryId": entry}).to_string()),
        Err(NoPlace::Taken) => {
            let text = "The specified route entry already exist in the RouteTable.";
            error(400, "RouterEntryConflict.Duplicated", text)
        }
        Err(NoPlace::Full) => {
            let text = "Route entry quota exceeded in this route table.";
            error(400, "QuotaExceeded.RouteEntry", text)
        }
    }
}
