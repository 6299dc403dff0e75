//! What the lease crate promises, one subject per file.

#[cfg(test)]
mod acquisition;
#[cfg(test)]
mod allocation;
#[cfg(test)]
mod attributes;
#[cfg(test)]
mod backend_options;
#[cfg(test)]
mod config;
#[cfg(test)]
mod config_errors;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod nonsense;
#[cfg(test)]
mod subnet_file;
#[cfg(test)]
mod support;
#[cfg(test)]
mod table;
