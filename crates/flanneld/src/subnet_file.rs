//! subnet_file
