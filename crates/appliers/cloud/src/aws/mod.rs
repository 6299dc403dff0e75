//! EC2's route tables, by its Query API of 2016-11-15.
//!
//! Shapes: "Amazon EC2 API Reference" (docs.aws.amazon.com/AWSEC2/latest/APIReference), actions
//! DescribeRouteTables, CreateRoute, ReplaceRoute, DeleteRoute, DescribeNetworkInterfaceAttribute and
//! ModifyNetworkInterfaceAttribute, and its page of error codes (errors-overview.html).

mod call;
pub(crate) mod web_identity;

use flannel_entries::cloud::{CloudRoute, Provider, Table};
use ipnet::IpNet;

use crate::client::{Client, MayForward, RouteState, TableRoute, TableView};
use crate::instance::Dialect;
use crate::xml::Element;
use crate::{CloudError, Fault, Result};
use call::{Parameters, call};

/// Number of tables in an answer; further pages are requested.
const PAGE: &str = "100";

/// "Use the Instance Metadata Service" and "Retrieve security credentials from instance metadata" of the Amazon EC2
/// User Guide (docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
pub(crate) const DIALECT: Dialect = Dialect {
    provider: Provider::AwsVpc,
    metadata: "http://169.254.169.254",
    metadata_variable: Some("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    session: Some(["x-aws-ec2-metadata-token-ttl-seconds", "x-aws-ec2-metadata-token"]),
    region: "placement/region",
    zone: "placement/availability-zone",
    interface: Some("network/interfaces/macs/MAC/interface-id"),
    vpc: "network/interfaces/macs/MAC/vpc-id",
    subnet: "network/interfaces/macs/MAC/subnet-id",
    addresses: &["network/interfaces/macs/MAC/local-ipv4s", "network/interfaces/macs/MAC/ipv6s"],
    roles: "iam/security-credentials/",
    role: "role",
    profile: "instance profile",
    ids: &["AWS_ACCESS_KEY_ID"],
    secrets: &["AWS_SECRET_ACCESS_KEY"],
    tokens: &["AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"],
    cloud: "EC2",
    how_to_give_keys: "give the instance a role (an instance profile), or set AWS_ACCESS_KEY_ID and \
                       AWS_SECRET_ACCESS_KEY, or AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, for flanneld",
    // The list of error codes of the "Amazon EC2 API Reference".
    faults: &[
        (Fault::Denied, &["UnauthorizedOperation", "AccessDenied", "AccessDeniedException"]),
        (Fault::Denied, &["Blocked", "OptInRequired"]),
        (Fault::Credentials, &["AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch"]),
        (Fault::Credentials, &["RequestExpired", "ExpiredToken", "MissingAuthenticationToken"]),
        (Fault::Credentials, &["IncompleteSignature", "UnrecognizedClientException"]),
        (Fault::Throttled, &["RequestLimitExceeded", "Throttling", "ThrottlingException"]),
        (Fault::Throttled, &["RequestThrottled"]),
        (Fault::Exists, &["RouteAlreadyExists"]),
        (Fault::Limit, &["RouteLimitExceeded"]),
        (Fault::NotFound, &["*.NotFound"]),
    ],
    wrong_clock: "RequestExpired",
    no_table: "InvalidRouteTableID",
    tables_of: "region",
    quota: "'Routes per route table' of VPC",
};

pub(crate) async fn view(client: &Client, table: &Table) -> Result<TableView> {
    let interface = &client.access.interface;
    if let Table::Named(id) = table {
        let named = tables(client, vec![("RouteTableId.1".into(), id.clone())]).await?;
        return named.into_iter().next().ok_or_else(|| none(client, &table.to_string()));
    }
    // The table that the subnet is explicitly associated with, else the main one of the VPC.
    let filters = |filters: &[(&str, &str)]| -> Parameters {
        let each = filters.iter().enumerate().flat_map(|(number, (name, value))| {
            let number = number + 1;
            [
                (format!("Filter.{number}.Name"), (*name).to_owned()),
                (format!("Filter.{number}.Value.1"), (*value).to_owned()),
            ]
        });
        each.chain([("MaxResults".to_owned(), PAGE.to_owned())]).collect()
    };
    let explicit = tables(client, filters(&[("association.subnet-id", &interface.subnet)])).await?;
    if let Some(view) = explicit.into_iter().next() {
        return Ok(view);
    }
    let main = filters(&[("association.main", "true"), ("vpc-id", &interface.vpc)]);
    let main = tables(client, main).await?;
    main.into_iter().next().ok_or_else(|| {
        none(client, &format!("the subnet {} of {}", interface.subnet, interface.vpc))
    })
}

fn none(client: &Client, of: &str) -> CloudError {
    Client::no_table("DescribeRouteTables", &format!("{of} in {}", client.access.node.region))
}

async fn tables(client: &Client, parameters: Parameters) -> Result<Vec<TableView>> {
    const ACTION: &str = "DescribeRouteTables";
    let mut views = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut page = parameters.clone();
        page.extend(next.take().map(|token| ("NextToken".to_owned(), token)));
        let answer = call(client, ACTION, page).await?;
        views.extend(answer.items("routeTableSet").map(read_table));
        match answer.text_of("nextToken") {
            Some(token) => next = Some(token.to_owned()),
            None => return Ok(views),
        }
    }
}

fn read_table(table: &Element) -> TableView {
    let id = table.text_of("routeTableId").unwrap_or_default().to_owned();
    TableView { id, routes: table.items("routeSet").filter_map(read_route).collect() }
}

/// A route to a prefix list has no destination that could be ours.
fn read_route(route: &Element) -> Option<TableRoute> {
    let destination = route.text_of("destinationCidrBlock");
    let destination = destination.or_else(|| route.text_of("destinationIpv6CidrBlock"))?;
    let hops = ["networkInterfaceId", "gatewayId", "natGatewayId", "instanceId"];
    let next_hop = hops.iter().find_map(|hop| route.text_of(hop)).unwrap_or_default();
    let state = match route.text_of("state") {
        Some("blackhole") => RouteState::Dead,
        Some("active") => RouteState::Active,
        _ => RouteState::Off,
    };
    Some(TableRoute {
        id: String::new(),
        destination: destination.parse().ok()?,
        next_hop: next_hop.to_owned(),
        state,
        written: route.text_of("origin") == Some("CreateRoute"),
    })
}

pub(crate) async fn put(
    client: &Client,
    table: &str,
    route: &CloudRoute,
    existing: Option<&TableRoute>,
) -> Result<()> {
    let mut parameters = of_route(table, route.destination);
    parameters.push(("NetworkInterfaceId".to_owned(), route.next_hop.clone()));
    // Replacing leaves no moment without a route. Somebody may have changed it since we read it.
    let (first, second, otherwise) = match existing {
        Some(_) => ("ReplaceRoute", "CreateRoute", Fault::NotFound),
        None => ("CreateRoute", "ReplaceRoute", Fault::Exists),
    };
    match call(client, first, parameters.clone()).await {
        Err(error) if error.fault == otherwise => call(client, second, parameters).await.map(drop),
        other => other.map(drop),
    }
}

pub(crate) async fn remove(client: &Client, table: &str, found: &TableRoute) -> Result<()> {
    call(client, "DeleteRoute", of_route(table, found.destination)).await.map(drop)
}

fn of_route(table: &str, destination: IpNet) -> Parameters {
    let name = match destination {
        IpNet::V4(_) => "DestinationCidrBlock",
        IpNet::V6(_) => "DestinationIpv6CidrBlock",
    };
    vec![("RouteTableId".to_owned(), table.to_owned()), (name.to_owned(), destination.to_string())]
}

/// Switches the source/destination check off, by which EC2 drops packets that are not the interface's own.
pub(crate) async fn let_forward(client: &Client) -> Result<MayForward> {
    let interface = client.access.interface.id.clone();
    let of_interface = ("NetworkInterfaceId".to_owned(), interface.clone());
    let question =
        vec![of_interface.clone(), ("Attribute".to_owned(), "sourceDestCheck".to_owned())];
    let looked = call(client, "DescribeNetworkInterfaceAttribute", question).await;
    let known = match &looked {
        Ok(answer) => answer.child("sourceDestCheck").and_then(|check| check.text_of("value")),
        Err(error) if error.fault == Fault::Denied => None,
        Err(error) => return Err(error.clone()),
    };
    if known == Some("false") {
        return Ok(MayForward::Yes);
    }
    let change = vec![of_interface, ("SourceDestCheck.Value".to_owned(), "false".to_owned())];
    match call(client, "ModifyNetworkInterfaceAttribute", change).await {
        Ok(_) => Ok(MayForward::Made),
        // Somebody may have switched it off by hand, and given us no permission.
        Err(error) if error.fault == Fault::Denied && known.is_none() => {
            Ok(MayForward::Unknown(format!(
                "whether the source/destination check of {interface} is off is not known, for this node may \
                 neither look nor switch it off: pods are cut off if it is on ({error})"
            )))
        }
        Err(error) => Err(error),
    }
}
