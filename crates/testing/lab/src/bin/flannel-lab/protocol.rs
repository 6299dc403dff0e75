//! What the commands and the supervisor say to each other: one JSON value a line.

use std::io::{self, BufRead, Write};

use flannel_lab::{LabSpec, Matrix, NamespacePaths};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::place::PlaceName;

/// What `up` tells the supervisor on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make this lab. If the input ends before `Keep`, remove it again.
    Make(Box<LabSpec>),
    /// Go on without whoever gave the orders.
    Keep,
}

/// What the supervisor tells `up` on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    Step(String),
    Ready,
    Failed(String),
}

/// What a command asks the supervisor for, on its socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Status,
    Matrix,
    Enter(PlaceName),
    Fault(Fault),
    Down,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Status(Box<Status>),
    Matrix(Matrix),
    Enter(NamespacePaths),
    Done(String),
    Failed(String),
}

/// A running lab as people want to see it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) backend: String,
    pub(crate) supervisor: u32,
    pub(crate) up_seconds: u64,
    pub(crate) etcd: Option<String>,
    pub(crate) nodes: Vec<NodeStatus>,
    pub(crate) faults: Vec<String>,
}

/// One node of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) number: u16,
    pub(crate) underlay: Vec<String>,
    pub(crate) subnets: Vec<String>,
    pub(crate) pods: Vec<String>,
    pub(crate) flanneld: String,
}

pub(crate) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next message; nothing if the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(mut from: impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
