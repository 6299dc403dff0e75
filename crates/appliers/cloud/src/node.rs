//! Queries a cloud's metadata service for the machine itself.

use flannel_entries::cloud::{CloudNode, NodeQuery, Provider};

use crate::{CloudError, ali, aws, gce, tencent};

/// Queries the metadata service.
pub async fn query_node(query: &NodeQuery) -> Result<CloudNode, CloudError> {
    let place = query.metadata.as_deref();
    match query.provider {
        Provider::AwsVpc => aws::metadata::node(place).await,
        Provider::AliVpc => ali::metadata::node(place).await,
        Provider::Gce => gce::metadata::node(place).await,
        Provider::TencentVpc => tencent::metadata::node(place).await,
    }
}
