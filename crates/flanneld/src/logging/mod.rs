//! logging/mod
