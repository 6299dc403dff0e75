//! User name and password against a token.

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use super::fault::{Fault, Kind};
use super::proto::{AuthenticateRequest, AuthenticateResponse};
use super::{EtcdOptions, Secret, rpc};

#[derive(Clone, Debug)]
pub(super) struct Credentials {
    username: String,
    password: Secret,
}

/// State of our login; a token is good at every member.
#[derive(Debug)]
pub(super) enum Login {
    Unknown,
    /// The cluster does not ask who we are.
    NotWanted,
    Token(MetadataValue<Ascii>),
}

impl Credentials {
    /// Both must be given and not empty.
    pub(super) fn new(options: &EtcdOptions) -> Option<Self> {
        let username = options.username.clone().filter(|name| !name.is_empty())?;
        let password = options.password.clone().filter(|word| !word.reveal().is_empty())?;
        Some(Self { username, password })
    }

    pub(super) async fn log_in(&self, channel: &Channel, endpoint: &str) -> Result<Login, Fault> {
        let request = AuthenticateRequest {
            name: self.username.clone(),
            password: self.password.reveal().to_owned(),
        };
        let answer: Result<AuthenticateResponse, _> =
            rpc::unary(channel.clone(), rpc::AUTHENTICATE, Request::new(request)).await;
        match answer {
            Ok(answer) => {
                let mut token: MetadataValue<Ascii> = answer.token.parse().map_err(|_| {
                    Fault::new(Kind::Refused, endpoint, "its token is not a valid header value")
                })?;
                token.set_sensitive(true);
                Ok(Login::Token(token))
            }
            Err(status) if status.message().contains("authentication is not enabled") => {
                tracing::info!(endpoint, "etcd asks for no user name: the one given is not used");
                Ok(Login::NotWanted)
            }
            Err(status) => Err(Fault::from_status(endpoint, &status)),
        }
    }
}

impl Login {
    /// `None` when logging in is due.
    pub(super) fn token(&self) -> Option<Option<MetadataValue<Ascii>>> {
        match self {
            Self::Unknown => None,
            Self::NotWanted => Some(None),
            Self::Token(token) => Some(Some(token.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_login_is_not_shown() {
        let mut token: MetadataValue<Ascii> = "hunter2".parse().expect("a header value");
        token.set_sensitive(true);
        assert!(!format!("{:?}", Login::Token(token)).contains("hunter2"));
    }
}
