//! Tencent Cloud's VPC API and its metadata service.
//!
//! Shapes: the examples of DescribeRouteTables, CreateRoutes and DeleteRoutes in the "Virtual Private Cloud API
//! documentation", its error codes, and "Viewing Instance Metadata" of the CVM documentation.

use serde_json::{Value, json};

use super::cloud::{NoPlace, REGION, ROLE, SUBNET, State, VPC, ZONE};
use super::http::{Request, Response};
use super::signing::{Authorization, digest_of, signature_of};

pub(super) fn answer(state: &mut State, number: u16, request: &Request) -> Response {
    if request.path.starts_with("/latest/") {
        return metadata(state, number, request);
    }
    let action = request.header("x-tc-action").to_owned();
    let signed = signature(state, request);
    let too_much =
        || error("RequestLimitExceeded", "The frequency of the request exceeds the limit.");
    let denied = || {
        let text = format!("you are not authorized to perform operation (vpc:{action})");
        error("UnauthorizedOperation", &text)
    };
    if let Err(error) = state.admit(&action, signed, too_much, denied) {
        return error;
    }
    assert_eq!(
        (request.header("x-tc-version"), request.header("x-tc-region")),
        ("2017-03-12", REGION)
    );
    let question: Value = serde_json::from_str(&request.body).unwrap();
    match action.as_str() {
        "DescribeRouteTables" => describe(state, &question),
        "CreateRoutes" | "DeleteRoutes" => change(state, &action, &question),
        _ => error("InvalidAction", "The action does not exist."),
    }
}

fn metadata(state: &State, number: u16, request: &Request) -> Response {
    let machine = &state.machines[&number];
    let mac = machine.mac();
    let path = request.path.strip_prefix("/latest/meta-data/").unwrap_or_default();
    let of_mac = path.strip_prefix(&format!("network/interfaces/macs/{mac}/"));
    let addresses: Vec<String> =
        machine.addresses.iter().filter(|ip| ip.is_ipv4()).map(|ip| format!("{ip}/")).collect();
    let text = match (path, of_mac) {
        (_, Some("vpc-id")) => VPC.to_owned(),
        (_, Some("subnet-id")) => SUBNET.to_owned(),
        (_, Some("local-ipv4s/")) => addresses.join("\n"),
        ("placement/region", _) => REGION.to_owned(),
        ("placement/zone", _) => ZONE.to_owned(),
        ("instance-id", _) => machine.instance(),
        ("network/interfaces/macs/", _) => format!("{mac}/"),
        ("cam/security-credentials/", _) if state.role => ROLE.to_owned(),
        ("cam/security-credentials/node-role", _) if state.role => {
            let (id, secret, token) = state.keys.last().unwrap();
            json!({
                "TmpSecretId": id, "TmpSecretKey": secret, "ExpiredTime": 4_070_908_800_u64,
                "Expiration": "2099-01-01T00:00:00Z", "Token": token, "Code": "Success"
            })
            .to_string()
        }
        _ => String::new(),
    };
    Response::of_path(text)
}

/// TC3-HMAC-SHA256, computed anew from what arrived.
fn signature(state: &State, request: &Request) -> Result<(), Response> {
    let Some(Authorization { credential, signed, signature: given }) =
        Authorization::read(request.header("authorization"))
    else {
        return Err(error(
            "AuthFailure.InvalidAuthorization",
            "Authorization is not in the right format.",
        ));
    };
    let words: Vec<&str> = credential.split('/').collect();
    let [id, day, "vpc", "tc3_request"] = words[..] else {
        return Err(error(
            "AuthFailure.InvalidAuthorization",
            "Credential is not in the right format.",
        ));
    };
    let Some((_, secret, token)) = state.keys.iter().find(|(known, ..)| known == id) else {
        return Err(error("AuthFailure.SecretIdNotFound", "The SecretId is not found."));
    };
    if request.header("x-tc-token") != token {
        return Err(error("AuthFailure.TokenFailure", "The token is not right."));
    }
    let time: i64 = request.header("x-tc-timestamp").parse().unwrap();
    if (jiff::Timestamp::now().as_second() - time).abs() > 300 {
        return Err(error("AuthFailure.SignatureExpire", "The signature has expired."));
    }
    let mut text = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
    for name in signed.split(';') {
        text += &format!("{name}:{}\n", request.header(name).to_ascii_lowercase());
    }
    text += &format!("\n{signed}\n{}", digest_of(request.body.as_bytes()));
    let to_sign =
        format!("TC3-HMAC-SHA256\n{time}\n{day}/vpc/tc3_request\n{}", digest_of(text.as_bytes()));
    let good_for = [day, "vpc", "tc3_request"];
    if signature_of(&format!("TC3{secret}"), &good_for, &to_sign) != given {
        return Err(error(
            "AuthFailure.SignatureFailure",
            "The provided credentials could not be validated.",
        ));
    }
    Ok(())
}

fn error(code: &str, message: &str) -> Response {
    let error = json!({"Code": code, "Message": message});
    reply(json!({"Error": error}))
}

fn reply(mut body: Value) -> Response {
    body["RequestId"] = json!("3c140219-cfe9-470e-b241-907877d6fb03");
    Response::ok(json!({"Response": body}).to_string())
}

fn describe(state: &State, question: &Value) -> Response {
    let named: Vec<&str> = question["RouteTableIds"]
        .as_array()
        .map(|ids| ids.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if let Some(unknown) =
        named.iter().find(|id| !state.tables.iter().any(|table| table.id == **id))
    {
        return error("ResourceNotFound", &format!("The route table {unknown} does not exist."));
    }
    if named.is_empty() {
        assert_eq!(question["Filters"], json!([{"Name": "vpc-id", "Values": [VPC]}]));
    }
    let chosen: Vec<_> = state
        .tables
        .iter()
        .enumerate()
        .filter(|(_, table)| named.is_empty() || named.contains(&table.id.as_str()))
        .collect();
    let number = |name: &str| question[name].as_str().unwrap().parse::<usize>().unwrap();
    let page = chosen.iter().skip(number("Offset")).take(number("Limit").min(state.page));
    let items: Vec<Value> = page
        .map(|(index, table)| {
            let mut routes = vec![json!({
                "RouteId": 1, "DestinationCidrBlock": "192.168.0.0/16", "GatewayType": "LOCAL_GATEWAY",
                "GatewayId": "local", "RouteType": "NETD", "Enabled": true,
            })];
            routes.extend(table.routes.iter().map(|route| {
                json!({
                    "RouteId": route_id(&route.destination), "RouteItemId": "rti-1", "DestinationIpv6CidrBlock": "",
                    "DestinationCidrBlock": route.destination, "GatewayType": "NORMAL_CVM",
                    "GatewayId": route.next_hop, "RouteType": "USER", "Enabled": route.enabled,
                    "RouteDescription": "flannel", "PublishedToVbc": false,
                })
            }));
            let associations: Vec<Value> =
                table.subnets.iter().map(|subnet| json!({"SubnetId": subnet, "RouteTableId": table.id})).collect();
            json!({
                "VpcId": VPC, "RouteTableId": table.id, "RouteTableName": "default", "Main": *index == 0,
                "AssociationSet": associations, "RouteSet": routes, "TagSet": [],
            })
        })
        .collect();
    reply(json!({"TotalCount": chosen.len(), "RouteTableSet": items}))
}

/// The same for the same destination.
fn route_id(destination: &str) -> u64 {
    destination.bytes().fold(7, |sum, byte| (sum * 31 + u64::from(byte)) % 1_000_000)
}

fn change(state: &mut State, action: &str, question: &Value) -> Response {
    let limit = state.limit;
    let known: Vec<String> =
        state.machines.values().map(|machine| machine.addresses[0].to_string()).collect();
    let Some(table) =
        state.tables.iter_mut().find(|table| question["RouteTableId"] == table.id.as_str())
    else {
        return error("ResourceNotFound", "The route table does not exist.");
    };
    let route = &question["Routes"][0];
    if action == "DeleteRoutes" {
        let there =
            table.routes.iter().position(|other| route["RouteId"] == route_id(&other.destination));
        let Some(at) = there else {
            return error("ResourceNotFound", "The route does not exist.");
        };
        table.routes.remove(at);
        return reply(json!({}));
    }
    let text = |name: &str| route[name].as_str().unwrap().to_owned();
    let (destination, next_hop) = (text("DestinationCidrBlock"), text("GatewayId"));
    assert_eq!((text("GatewayType").as_str(), &route["Enabled"]), ("NORMAL_CVM", &json!(true)));
    if !known.contains(&next_hop) {
        return error("InvalidParameterValue", &format!("no machine with the address {next_hop}"));
    }
    match table.add(route_id(&destination).to_string(), destination, next_hop, limit) {
        Ok(()) => reply(json!({"TotalCount": 1, "RouteTableSet": []})),
        Err(NoPlace::Taken) => {
            error("InvalidParameterValue.Duplicate", "The route already exists.")
        }
        Err(NoPlace::Full) => {
            error("LimitExceeded", "The number of routing policies exceeds the limit.")
        }
    }
}
