//! A cloud's state, the same for all providers: machines, and the route tables of one VPC.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flannel_entries::cloud::Provider;

use super::http::{Request, Response, serve};
use super::{ali, aws, gce, tencent};

/// A handle. Servers end with the last one.
#[derive(Clone)]
pub struct Cloud {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    stop: Arc<AtomicBool>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

type Hook = Box<dyn Fn(&[TableRoute]) + Send>;

pub struct State {
    pub provider: Provider,
    pub machines: BTreeMap<u16, Machine>,
    /// The first is the VPC's main one.
    pub tables: Vec<RouteTable>,
    /// Whether packets that are not a machine's own are dropped.
    pub checked: BTreeMap<u16, bool>,
    /// Actions that nobody may do.
    pub denied: BTreeSet<String>,
    /// So many calls are answered with being too many.
    pub throttled: u32,
    /// What such an answer says of when to ask again.
    pub retry_after: Option<String>,
    /// Of whoever may act for the machines' role, besides the machines themselves.
    pub identity: Option<String>,
    /// Its API answers with an error of its own.
    pub broken: bool,
    /// So many routes have place in a table.
    pub limit: usize,
    /// So many things in an answer.
    pub page: usize,
    /// What was asked for.
    pub calls: Vec<String>,
    /// The keys that are valid: id, secret, token.
    pub keys: Vec<(String, String, String)>,
    /// Whether machines have a role that lends them the last of the keys.
    pub role: bool,
    /// Calls whose signature was wrong.
    pub forged: u32,
    hook: Option<Hook>,
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub number: u16,
    pub addresses: Vec<IpAddr>,
}

#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    pub id: String,
    /// It is in force for these.
    pub subnets: Vec<String>,
    pub routes: Vec<TableRoute>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct TableRoute {
    pub id: String,
    pub destination: String,
    pub next_hop: String,
    /// Its machine is there, and it is not switched off.
    pub alive: bool,
    pub enabled: bool,
}

impl fmt::Debug for TableRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { destination, next_hop, alive, enabled, .. } = self;
        write!(f, "{destination} to {next_hop}")?;
        if !alive || !enabled { f.write_str(" (dead)") } else { Ok(()) }
    }
}

impl Machine {
    /// As an instance is called.
    pub fn instance(&self) -> String {
        format!("i-{:04}", self.number)
    }

    pub fn interface(&self) -> String {
        format!("eni-{:04}", self.number)
    }

    pub fn mac(&self) -> String {
        format!("02:fa:00:00:00:{:02x}", self.number)
    }
}

pub(crate) const VPC: &str = "vpc-1";
pub(crate) const SUBNET: &str = Cloud::SUBNET;
pub(crate) const REGION: &str = "eu-west-1";
pub(crate) const ZONE: &str = "eu-west-1a";
pub(crate) const PROJECT: &str = "project-1";
pub(crate) const ROLE: &str = "node-role";

impl Cloud {
    /// Its tables: the main one, and one that is in force for nobody.
    pub const MAIN: &str = "rtb-main";
    pub const OTHER: &str = "rtb-other";
    /// That of all machines.
    pub const SUBNET: &str = "subnet-1";

    pub fn new(provider: Provider) -> Self {
        let table = |id: &str| RouteTable { id: id.to_owned(), ..RouteTable::default() };
        let state = State {
            provider,
            machines: BTreeMap::new(),
            tables: vec![table(Self::MAIN), table(Self::OTHER)],
            checked: BTreeMap::new(),
            denied: BTreeSet::new(),
            throttled: 0,
            retry_after: None,
            identity: None,
            broken: false,
            limit: 50,
            page: 1,
            calls: Vec::new(),
            keys: vec![
                ("AKIDSTATIC".to_owned(), "static-secret-0123456789".to_owned(), String::new()),
                (
                    "ASIALENT1".to_owned(),
                    "lent-secret-0123456789".to_owned(),
                    "lent-token-1".to_owned(),
                ),
            ],
            role: true,
            forged: 0,
            hook: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        Self { inner: Arc::new(Inner { state: Mutex::new(state), stop }) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap()
    }

    /// Adds a machine, which reaches the cloud at a listener: its metadata service, and the provider's API.
    pub fn add_machine(&self, number: u16, addresses: &[IpAddr], listener: TcpListener) {
        let machine = Machine { number, addresses: addresses.to_vec() };
        self.state().machines.insert(number, machine);
        self.state().checked.insert(number, true);
        let stop = self.inner.stop.clone();
        let inner = Arc::downgrade(&self.inner);
        let answer = move |request: &Request| match inner.upgrade() {
            Some(inner) => {
                let mut state = inner.state.lock().unwrap();
                let before =
                    state.tables.iter().map(|table| table.routes.clone()).collect::<Vec<_>>();
                let response = state.answer(number, request);
                let after =
                    state.tables.iter().map(|table| table.routes.clone()).collect::<Vec<_>>();
                if before != after {
                    state.changed();
                }
                response
            }
            None => Response::of(503, ""),
        };
        serve(listener, stop, Arc::new(answer));
    }

    /// Called with the routes of the main table when these have changed.
    pub fn on_change(&self, hook: impl Fn(&[TableRoute]) + Send + 'static) {
        self.state().hook = Some(Box::new(hook));
    }

    pub fn routes(&self, table: &str) -> Vec<TableRoute> {
        let state = self.state();
        let mut routes = state.table(table).routes.clone();
        routes.sort_by(|a, b| a.destination.cmp(&b.destination));
        routes
    }

    /// As `destination to next hop`.
    pub fn shown(&self, table: &str) -> Vec<String> {
        self.routes(table).iter().map(|route| format!("{route:?}")).collect()
    }

    /// Somebody else's hand.
    pub fn set_routes(&self, table: &str, routes: &[(&str, &str, bool)]) {
        let mut state = self.state();
        let place = state.tables.iter_mut().find(|other| other.id == table).unwrap();
        place.routes = routes
            .iter()
            .map(|(destination, next_hop, alive)| TableRoute {
                id: format!("flannel-{}", destination.replace(['.', '/', ':'], "-")),
                destination: (*destination).to_owned(),
                next_hop: (*next_hop).to_owned(),
                alive: *alive,
                enabled: true,
            })
            .collect();
        state.changed();
    }

    /// How a route names a machine.
    pub fn hop(&self, number: u16) -> String {
        let state = self.state();
        let machine = &state.machines[&number];
        match state.provider {
            Provider::AwsVpc => machine.interface(),
            Provider::AliVpc => machine.instance(),
            Provider::Gce => {
                format!(
                    "https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{}",
                    machine.instance()
                )
            }
            Provider::TencentVpc => machine.addresses[0].to_string(),
        }
    }

    /// What a route is made by.
    pub fn writing(&self) -> &'static str {
        match self.state().provider {
            Provider::AwsVpc => "CreateRoute",
            Provider::AliVpc => "CreateRouteEntry",
            Provider::Gce => "POST routes",
            Provider::TencentVpc => "CreateRoutes",
        }
    }

    /// What is needed for that.
    pub fn permission(&self) -> &'static str {
        match self.state().provider {
            Provider::AwsVpc => "ec2:CreateRoute",
            Provider::AliVpc => "vpc:CreateRouteEntry",
            Provider::Gce => "compute.routes.create",
            Provider::TencentVpc => "vpc:CreateRoutes",
        }
    }
}

impl State {
    fn answer(&mut self, number: u16, request: &Request) -> Response {
        let metadata =
            request.path.starts_with("/latest/") || request.path.starts_with("/computeMetadata/");
        if self.broken && !metadata {
            self.calls.push("broken".to_owned());
            return Response::of(503, "<html>Service Unavailable</html>");
        }
        match self.provider {
            Provider::AwsVpc => aws::answer(self, number, request),
            Provider::AliVpc => ali::answer(self, number, request),
            Provider::Gce => gce::answer(self, number, request),
            Provider::TencentVpc => tencent::answer(self, number, request),
        }
    }

    fn changed(&self) {
        if let Some(hook) = &self.hook {
            hook(&self.tables[0].routes);
        }
    }

    pub(crate) fn table(&self, id: &str) -> &RouteTable {
        self.tables.iter().find(|table| table.id == id).unwrap()
    }

    /// Whether a call is let in, and with which of the provider's errors if not.
    pub(crate) fn admit(
        &mut self,
        call: &str,
        signature: Result<(), Response>,
        too_much: impl FnOnce() -> Response,
        denied: impl FnOnce() -> Response,
    ) -> Result<(), Response> {
        self.calls.push(call.to_owned());
        if let Err(error) = signature {
            self.forged += 1;
            return Err(error);
        }
        if self.throttled > 0 {
            self.throttled -= 1;
            return Err(Response { retry_after: self.retry_after.clone(), ..too_much() });
        }
        if self.denied.contains(call) { Err(denied()) } else { Ok(()) }
    }
}

/// Why a route has no place in a table.
pub(crate) enum NoPlace {
    Taken,
    Full,
}

impl RouteTable {
    pub(crate) fn add(
        &mut self,
        id: String,
        destination: String,
        next_hop: String,
        limit: usize,
    ) -> Result<(), NoPlace> {
        let same = |other: &TableRoute| other.destination == destination;
        if self.routes.iter().any(same) {
            return Err(NoPlace::Taken);
        }
        if self.routes.len() >= limit {
            return Err(NoPlace::Full);
        }
        self.routes.push(TableRoute { id, destination, next_hop, alive: true, enabled: true });
        Ok(())
    }
}
