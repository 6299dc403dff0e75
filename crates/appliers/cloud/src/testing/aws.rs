//! EC2 and the instance metadata service, version 2.
//!
//! Shapes: "Amazon EC2 API Reference", the examples of DescribeRouteTables, CreateRoute, DeleteRoute and
//! DescribeNetworkInterfaceAttribute; "Error codes for the Amazon EC2 API"; "Retrieve security credentials from
//! instance metadata" of the Amazon EC2 User Guide.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cloud::{NoPlace, REGION, ROLE, RouteTable, SUBNET, State, TableRoute, VPC, ZONE};
use super::http::{Request, Response, form};
use super::signing::{Authorization, digest_of, signature_of};

const SESSION: &str = "imds-session";

pub(super) fn answer(state: &mut State, number: u16, request: &Request) -> Response {
    if request.path.starts_with("/latest/") {
        return metadata(state, number, request);
    }
    let parameters = form(&request.body);
    let action = parameters.get("Action").cloned().unwrap_or_default();
    if action == "AssumeRoleWithWebIdentity" {
        return assume(state, &parameters);
    }
    let signed = signature(state, request, "ec2");
    let denied = || {
        let text = format!(
            "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/{ROLE} is not \
             authorized to perform: ec2:{action}. Encoded authorization failure message: {}",
            "AbCdEf0123".repeat(60)
        );
        error(403, "UnauthorizedOperation", &text)
    };
    let too_much = || error(503, "RequestLimitExceeded", "Request limit exceeded.");
    if let Err(error) = state.admit(&action, signed, too_much, denied) {
        return error;
    }
    if parameters.get("Version").map(String::as_str) != Some("2016-11-15") {
        return error(400, "NoSuchVersion", "The requested version does not exist.");
    }
    match action.as_str() {
        "DescribeRouteTables" => describe(state, &parameters),
        "CreateRoute" | "ReplaceRoute" | "DeleteRoute" => change(state, &action, &parameters),
        "DescribeNetworkInterfaceAttribute" | "ModifyNetworkInterfaceAttribute" => {
            interface(state, &action, &parameters)
        }
        _ => error(400, "InvalidAction", "The action is not valid for this web service."),
    }
}

fn metadata(state: &State, number: u16, request: &Request) -> Response {
    if request.path == "/latest/api/token" {
        let asked = !request.header("x-aws-ec2-metadata-token-ttl-seconds").is_empty();
        return match (request.method.as_str(), asked) {
            ("PUT", true) => Response::ok(SESSION),
            ("PUT", false) => Response::of(400, ""),
            _ => Response::of(405, ""),
        };
    }
    if request.header("x-aws-ec2-metadata-token") != SESSION {
        return Response::of(401, "");
    }
    let machine = &state.machines[&number];
    let mac = machine.mac();
    let path = request.path.strip_prefix("/latest/meta-data/").unwrap_or_default();
    let of_mac = path.strip_prefix(&format!("network/interfaces/macs/{mac}/"));
    let family = |v4: bool| {
        let all = machine.addresses.iter().filter(|address| address.is_ipv4() == v4);
        all.map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let text = match (path, of_mac) {
        (_, Some("interface-id")) => machine.interface(),
        (_, Some("vpc-id")) => VPC.to_owned(),
        (_, Some("subnet-id")) => SUBNET.to_owned(),
        (_, Some("local-ipv4s")) => family(true),
        (_, Some("ipv6s")) => family(false),
        ("placement/region", _) => REGION.to_owned(),
        ("placement/availability-zone", _) => ZONE.to_owned(),
        ("instance-id", _) => machine.instance(),
        ("mac", _) => mac,
        ("network/interfaces/macs/", _) => format!("{mac}/"),
        ("iam/security-credentials/", _) if state.role => ROLE.to_owned(),
        ("iam/security-credentials/node-role", _) if state.role => {
            let (id, secret, token) = state.keys.last().unwrap();
            serde_json::json!({
                "Code": "Success", "LastUpdated": "2026-01-01T00:00:00Z", "Type": "AWS-HMAC", "AccessKeyId": id,
                "SecretAccessKey": secret, "Token": token, "Expiration": "2099-01-01T00:00:00Z"
            })
            .to_string()
        }
        _ => String::new(),
    };
    Response::of_path(text)
}

/// Signature Version 4, computed anew from what arrived.
fn signature(state: &State, request: &Request, service: &str) -> Result<(), Response> {
    let bad =
        |code: &str, text: &str| error(if code == "AuthFailure" { 401 } else { 403 }, code, text);
    let Some(Authorization { credential, signed, signature: given }) =
        Authorization::read(request.header("authorization"))
    else {
        return Err(bad("MissingAuthenticationToken", "Request is missing Authentication Token"));
    };
    let words: Vec<&str> = credential.split('/').collect();
    let [id, day, region, of, "aws4_request"] = words[..] else {
        return Err(bad(
            "IncompleteSignature",
            "Credential must have exactly 5 slash-delimited elements",
        ));
    };
    let Some((_, secret, token)) = state.keys.iter().find(|(known, ..)| known == id) else {
        return Err(bad(
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
        ));
    };
    if request.header("x-amz-security-token") != token {
        return Err(bad(
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
        ));
    }
    let time = request.header("x-amz-date").to_owned();
    let sent = jiff::fmt::strtime::parse("%Y%m%dT%H%M%S%z", time.replace('Z', "+0000")).ok();
    let sent = sent.and_then(|time| time.to_timestamp().ok());
    let age = sent.map(|sent| (jiff::Timestamp::now().as_second() - sent.as_second()).abs());
    if age.is_none_or(|age| age > 300) {
        return Err(bad("RequestExpired", "Request has expired."));
    }
    let required = ["host", "x-amz-date"];
    let names: Vec<&str> = signed.split(';').collect();
    let token_is_signed = token.is_empty() || names.contains(&"x-amz-security-token");
    if region != REGION
        || of != service
        || !required.iter().all(|it| names.contains(it))
        || !token_is_signed
    {
        return Err(bad("SignatureDoesNotMatch", "Credential should be scoped to a valid region."));
    }
    let mut text = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
    for name in &names {
        writeln!(text, "{name}:{}", request.header(name)).unwrap();
    }
    write!(text, "\n{signed}\n{}", digest_of(request.body.as_bytes())).unwrap();
    let to_sign = [
        "AWS4-HMAC-SHA256",
        &time,
        &format!("{day}/{region}/{of}/aws4_request"),
        &digest_of(text.as_bytes()),
    ]
    .join("\n");
    let good_for = [day, region, of, "aws4_request"];
    if signature_of(&format!("AWS4{secret}"), &good_for, &to_sign) != given {
        return Err(bad(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.",
        ));
    }
    Ok(())
}

/// "AssumeRoleWithWebIdentity" of the AWS Security Token Service API Reference, and its errors.
fn assume(state: &mut State, parameters: &Parameters) -> Response {
    state.calls.push("AssumeRoleWithWebIdentity".to_owned());
    let given = |name: &str| parameters.get(name).cloned().unwrap_or_default();
    assert_eq!(given("Version"), "2011-06-15");
    assert!(!given("RoleSessionName").is_empty());
    if state.identity != Some(given("WebIdentityToken")) || !given("RoleArn").ends_with(ROLE) {
        let error = "<Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>No OpenIDConnect provider \
                     found in your account for https://oidc.example</Message></Error>";
        return Response::of(
            400,
            format!("<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"),
        );
    }
    let (id, secret, token) = state.keys.last().unwrap();
    Response::ok(format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult><Credentials><SessionToken>{token}</SessionToken>\
         <SecretAccessKey>{secret}</SecretAccessKey><Expiration>2099-01-01T00:00:00Z</Expiration>\
         <AccessKeyId>{id}</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>\
         </AssumeRoleWithWebIdentityResponse>"
    ))
}

fn error(status: u16, code: &str, message: &str) -> Response {
    Response::of(
        status,
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
             <Message>{message}</Message></Error></Errors><RequestID>ea966190-f9aa-478e-9ede-example</RequestID>\
             </Response>"
        ),
    )
}

fn reply(action: &str, body: &str) -> Response {
    Response::ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response \
         xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\n    <requestId>59dbff89-35bd-4eac-99ed-be587EXAMPLE\
         </requestId>\n    {body}\n</{action}Response>"
    ))
}

type Parameters = BTreeMap<String, String>;

/// Page by page. Filters are applied to a page: one may be empty and not the last.
fn describe(state: &State, parameters: &Parameters) -> Response {
    let named: Vec<&String> = parameters
        .iter()
        .filter(|(name, _)| name.starts_with("RouteTableId."))
        .map(|(_, id)| id)
        .collect();
    if let Some(unknown) =
        named.iter().find(|id| !state.tables.iter().any(|table| table.id == ***id))
    {
        let text = format!("The routeTable ID '{unknown}' does not exist");
        return error(400, "InvalidRouteTableID.NotFound", &text);
    }
    let start: usize = parameters.get("NextToken").map_or(0, |token| token[5..].parse().unwrap());
    let end = (start + state.page).min(state.tables.len());
    let mut items = String::new();
    for (index, table) in state.tables.iter().enumerate().skip(start).take(end - start) {
        if named.is_empty() || named.contains(&&table.id) {
            let fits = |number: usize| {
                let name = parameters.get(&format!("Filter.{number}.Name"))?;
                let value = &parameters[&format!("Filter.{number}.Value.1")];
                Some(match name.as_str() {
                    "association.subnet-id" => table.subnets.contains(value),
                    "association.main" => (index == 0).to_string() == *value,
                    "vpc-id" => value == VPC,
                    other => panic!("the filter {other}"),
                })
            };
            if (1..).map_while(fits).all(|fits| fits) {
                items += &show(table, index == 0);
            }
        }
    }
    let next = if end < state.tables.len() {
        format!("<nextToken>page-{end}</nextToken>")
    } else {
        String::new()
    };
    reply("DescribeRouteTables", &format!("<routeTableSet>{items}</routeTableSet>{next}"))
}

fn show(table: &RouteTable, main: bool) -> String {
    let mut routes = "<item><destinationCidrBlock>192.168.0.0/16</destinationCidrBlock>\
         <gatewayId>local</gatewayId><state>active</state><origin>CreateRouteTable</origin></item>\
         <item><destinationPrefixListId>pl-1</destinationPrefixListId><gatewayId>vpce-1</gatewayId>\
         <state>active</state><origin>CreateRoute</origin></item>"
        .to_owned();
    for TableRoute { destination, next_hop, alive, .. } in &table.routes {
        let name = if destination.contains(':') {
            "destinationIpv6CidrBlock"
        } else {
            "destinationCidrBlock"
        };
        let (state, instance) = match alive {
            true => ("active", next_hop.replace("eni-", "i-")),
            false => ("blackhole", String::new()),
        };
        let instance = match instance.as_str() {
            "" => String::new(),
            id => format!("<instanceId>{id}</instanceId><instanceOwnerId>1</instanceOwnerId>"),
        };
        routes += &format!(
            "<item><{name}>{destination}</{name}>{instance}<networkInterfaceId>{next_hop}</networkInterfaceId>\
             <state>{state}</state><origin>CreateRoute</origin></item>"
        );
    }
    format!(
        "<item><routeTableId>{}</routeTableId><vpcId>{VPC}</vpcId><routeSet>{routes}</routeSet>\
         <associationSet><item><routeTableAssociationId>rtbassoc-1</routeTableAssociationId><main>{main}</main>\
         </item></associationSet><tagSet/></item>",
        table.id
    )
}

fn change(state: &mut State, action: &str, parameters: &Parameters) -> Response {
    let limit = state.limit;
    let known = |hop: &str| state.machines.values().any(|machine| machine.interface() == hop);
    let hop = parameters.get("NetworkInterfaceId").cloned().unwrap_or_default();
    if action != "DeleteRoute" && !known(&hop) {
        let text = format!("The networkInterface ID '{hop}' does not exist");
        return error(400, "InvalidNetworkInterfaceID.NotFound", &text);
    }
    let destination =
        parameters.get("DestinationCidrBlock").or(parameters.get("DestinationIpv6CidrBlock"));
    let destination = destination.cloned().unwrap_or_default();
    let id = &parameters["RouteTableId"];
    let Some(table) = state.tables.iter_mut().find(|table| table.id == *id) else {
        return error(400, "InvalidRouteTableID.NotFound", "The routeTable ID does not exist");
    };
    if action == "CreateRoute" {
        match table.add(String::new(), destination.clone(), hop, limit) {
            Ok(()) => return reply(action, "<return>true</return>"),
            Err(NoPlace::Taken) => {
                let text = format!("The route identified by {destination} already exists.");
                return error(400, "RouteAlreadyExists", &text);
            }
            Err(NoPlace::Full) => {
                let text = format!("The maximum limit of routes for {id} has been reached.");
                return error(400, "RouteLimitExceeded", &text);
            }
        }
    }
    let there = table.routes.iter().position(|route| route.destination == destination);
    match (action, there) {
        (_, None) => {
            let text =
                format!("no route with destination-cidr-block {destination} in route table {id}");
            return error(400, "InvalidRoute.NotFound", &text);
        }
        ("ReplaceRoute", Some(at)) => {
            table.routes[at].next_hop = hop;
            table.routes[at].alive = true;
        }
        (_, Some(at)) => drop(table.routes.remove(at)),
    }
    reply(action, "<return>true</return>")
}

fn interface(state: &mut State, action: &str, parameters: &Parameters) -> Response {
    let id = &parameters["NetworkInterfaceId"];
    let machine = state.machines.values().find(|machine| machine.interface() == *id);
    let Some(number) = machine.map(|machine| machine.number) else {
        return error(
            400,
            "InvalidNetworkInterfaceID.NotFound",
            "The networkInterface ID does not exist",
        );
    };
    if action == "ModifyNetworkInterfaceAttribute" {
        state.checked.insert(number, parameters["SourceDestCheck.Value"] == "true");
        return reply(action, "<return>true</return>");
    }
    assert_eq!(parameters["Attribute"], "sourceDestCheck");
    let checked = state.checked[&number];
    let body = format!(
        "<networkInterfaceId>{id}</networkInterfaceId><sourceDestCheck><value>{checked}</value></sourceDestCheck>"
    );
    reply(action, &body)
}
