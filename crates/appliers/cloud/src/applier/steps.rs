//! Second part of a round: finds what differs from what is wanted, and repairs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flannel_entries::cloud::{CloudEntry, CloudRoute, Table};
use flannel_wanted::{Repair, Requester};
use ipnet::IpNet;

use super::task::{Part, PartResult, RouteTask, TableReading, unless_throttled};
use crate::client::{Client, TableRoute, TableView};
use crate::plan::{compare, unwanted};
use crate::record::{self, OwnRoute};
use crate::{CloudError, Fault, Result};

const MAX_REMOVAL_ATTEMPTS: u32 = 10;

pub(super) enum Step {
    Put { client: Arc<Client>, route: CloudRoute, table: String, existing: Option<TableRoute> },
    Remove { client: Arc<Client>, table: String, found: TableRoute, why: &'static str },
}

pub(super) fn write(steps: Vec<Step>) -> Part {
    Box::pin(async move {
        let mut done = Vec::new();
        let mut refusal = None;
        for step in steps {
            let result = match &step {
                Step::Put { client, route, table, existing } => {
                    let put = client.put(table, route, existing.as_ref());
                    unless_throttled(&mut refusal, put).await
                }
                Step::Remove { client, table, found, .. } => {
                    unless_throttled(&mut refusal, client.remove(table, found)).await
                }
            };
            done.push((step, result));
        }
        PartResult::Written(done)
    })
}

impl<S: Requester> RouteTask<S> {
    /// Plans the second part from what was read and what is wanted by now.
    pub(super) fn plan(&mut self, looks: &[TableReading], now: Instant) -> Vec<Step> {
        self.wanted.begin_resync();
        let mut steps = Vec::new();
        let routes: Vec<CloudRoute> =
            self.wanted.iter().filter_map(|entry| entry.route().cloned()).collect();
        // What is wanted in each table, by its identifier.
        let mut kept: BTreeMap<&str, BTreeSet<IpNet>> = BTreeMap::new();
        for route in &routes {
            let Some(look) = look_of(looks, route) else { continue };
            let view = match &look.view {
                Ok(view) => view,
                Err(error) => {
                    self.unseen(&route.key(), error, now);
                    continue;
                }
            };
            kept.entry(&view.id).or_default().insert(route.destination);
            steps.extend(self.plan_route(route, look, view, now));
        }
        // A table that could not be read may be any of the others: nothing is removed.
        if looks.iter().any(|look| look.view.is_err()) {
            self.count_failures(looks);
            return steps;
        }
        let mut seen = BTreeSet::new();
        for TableReading { client, view, .. } in looks {
            let Ok(view) = view else { continue };
            if !seen.insert(&view.id) {
                continue;
            }
            let of_client = |route: &&CloudRoute| route.access == client.access;
            let leaving = self.leaving.iter().map(|(route, _)| route);
            let own = routes.iter().chain(leaving).filter(of_client);
            let own: BTreeSet<&str> = own.map(|route| route.next_hop.as_str()).collect();
            let wanted = kept.entry(&view.id).or_default();
            for (found, why) in unwanted(view, &self.networks, &own, wanted) {
                let (client, table, found) = (client.clone(), view.id.clone(), found.clone());
                steps.push(Step::Remove { client, table, found, why });
            }
        }
        self.forget_removed(looks, &steps, &kept);
        steps
    }

    fn plan_route(
        &mut self,
        route: &CloudRoute,
        look: &TableReading,
        view: &TableView,
        now: Instant,
    ) -> Option<Step> {
        let key = route.key();
        let own = OwnRoute::new(route, &view.id);
        if let Err(error) = own.write(&self.directory) {
            tracing::warn!(
                "Cannot record in {} that {own} is ours: {error}",
                self.directory.display()
            );
        }
        let existing = match compare(route, &view.routes) {
            Ok(()) => {
                self.wanted.seen(&key);
                return None;
            }
            Err(existing) => existing,
        };
        let found = match existing {
            Some(TableRoute { next_hop, state, .. }) => format!("leads to {next_hop} ({state:?})"),
            None => "is gone".to_owned(),
        };
        if self.wanted.is_good(&key) == Some(true) {
            match self.wanted.disturbed(&key, now, &mut self.rng) {
                Repair::Now => tracing::warn!("The {route} {found}: writing it again"),
                Repair::Later(pause) => tracing::warn!(
                    "The {route} {found}, again: somebody keeps changing it; writing it again in {pause:.0?}"
                ),
                Repair::AlreadyDue => {}
            }
        }
        self.wanted.is_marked(&key).then(|| Step::Put {
            client: look.client.clone(),
            route: route.clone(),
            table: view.id.clone(),
            existing: existing.cloned(),
        })
    }

    /// Forgets routes that were to go and are gone. Those still to be removed are among the steps.
    fn forget_removed(
        &mut self,
        looks: &[TableReading],
        steps: &[Step],
        kept: &BTreeMap<&str, BTreeSet<IpNet>>,
    ) {
        let directory = &self.directory;
        self.leaving.retain(|(route, _)| {
            let view = look_of(looks, route).and_then(|look| look.view.as_ref().ok());
            let Some(view) = view else { return true };
            let goes = |step: &Step| {
                matches!(step, Step::Remove { table, found, .. }
                    if *table == view.id && found.destination == route.destination)
            };
            if steps.iter().any(goes) {
                return true;
            }
            // It may be wanted, in a table that was named before and is detected now.
            let wanted = kept.get(view.id.as_str());
            if wanted.is_none_or(|wanted| !wanted.contains(&route.destination)) {
                record::forget(directory, route.destination, &view.id);
            }
            false
        });
    }

    fn count_failures(&mut self, looks: &[TableReading]) {
        self.leaving.retain_mut(|(route, tries)| {
            let error = look_of(looks, route).and_then(|look| look.view.as_ref().err());
            error.is_none_or(|error| retries_removal(route, tries, error, &self.directory))
        });
    }

    pub(super) fn on_step(&mut self, step: Step, result: Result<()>, now: Instant) {
        match step {
            Step::Put { route, table, .. } => {
                let key = route.key();
                if self.wanted.get(&key) != Some(&CloudEntry::Route(route.clone())) {
                    self.changed = true;
                    return;
                }
                match result {
                    Ok(()) => {
                        tracing::info!("Wrote the {route}: {table}");
                        self.wanted.succeeded(&key);
                    }
                    Err(error) => self.failed(&key, &error, now),
                }
            }
            Step::Remove { table, found, why, .. } => {
                let TableRoute { destination, next_hop, .. } = &found;
                let what =
                    format!("the route {destination} to {next_hop} of the route table {table}");
                match result {
                    Ok(()) => {
                        tracing::info!("Removed {what}: {why}");
                        if !self.comparing.is_empty() {
                            self.removed.push(what);
                        }
                        record::forget(&self.directory, *destination, &table);
                        self.leaving.retain(|(route, _)| route.destination != *destination);
                    }
                    Err(error) => {
                        let directory = self.directory.clone();
                        let mut known = false;
                        self.leaving.retain_mut(|(route, tries)| {
                            let this = route.destination == *destination;
                            known |= this;
                            !this || retries_removal(route, tries, &error, &directory)
                        });
                        if !known {
                            tracing::warn!("Cannot remove {what} ({why}): {error}");
                        }
                    }
                }
            }
        }
    }
}

fn retries_removal(
    route: &CloudRoute,
    tries: &mut u32,
    error: &CloudError,
    directory: &Path,
) -> bool {
    if error.fault == Fault::Throttled {
        return true;
    }
    *tries += 1;
    let more = *tries < MAX_REMOVAL_ATTEMPTS;
    if *tries == 1 || !more {
        let then =
            if more { "trying again" } else { "remove it by hand, or by flannelctl cleanup" };
        tracing::error!("Cannot remove the {route}, which is no longer wanted: {error}; {then}");
    }
    if !more && error.fault == Fault::NotFound {
        // The table itself is gone.
        if let Table::Named(table) = &route.table {
            record::forget(directory, route.destination, table);
        }
    }
    more
}

fn look_of<'a>(looks: &'a [TableReading], route: &CloudRoute) -> Option<&'a TableReading> {
    looks.iter().find(|look| look.client.access == route.access && look.table == route.table)
}
