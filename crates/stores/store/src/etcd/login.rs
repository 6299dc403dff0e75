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

/// Result of a login: a token, which is good at every member; `None` where the cluster does not ask who we are.
pub(super) type Token = Option<MetadataValue<Ascii>>;

impl Credentials {
    /// Both must be given and not empty.
    pub(super) fn new(options: &EtcdOptions) -> Option<Self> {
        let username = options.username.clone().filter(|name| !name.is_empty())?;
        let password = options.password.clone().filter(|word| !word.reveal().is_empty())?;
        Some(Self { username, password })
    }

    pub(super) async fn log_in(&self, channel: &Channel, endpoint: &str) -> Result<Token, Fault> {
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
                Ok(Some(token))
            }
            Err(status) if status.message().contains("authentication is not enabled") => {
                tracing::info!(endpoint, "etcd asks for no user name: the one given is not used");
                Ok(None)
            }
            Err(status) => Err(Fault::from_status(endpoint, &status)),
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
        let token: Token = Some(token);
        assert!(!format!("{token:?}").contains("hunter2"));
    }
}
