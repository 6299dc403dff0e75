//! Numbers of the kernel's nftables interface (`linux/netfilter/nf_tables.h`), each once.

pub(crate) const NEW_TABLE: u16 = 0;
pub(crate) const GET_TABLE: u16 = 1;
pub(crate) const DELETE_TABLE: u16 = 2;
pub(crate) const NEW_CHAIN: u16 = 3;
pub(crate) const GET_CHAIN: u16 = 4;
pub(crate) const DELETE_CHAIN: u16 = 5;
pub(crate) const NEW_RULE: u16 = 6;
pub(crate) const GET_RULE: u16 = 7;
pub(crate) const DELETE_RULE: u16 = 8;
pub(crate) const GET_SET: u16 = 10;
pub(crate) const GET_ELEMENTS: u16 = 13;
pub(crate) const NEW_GENERATION: u16 = 15;
pub(crate) const GET_GENERATION: u16 = 16;

/// Attribute of every object: the name of its table.
pub(crate) const TABLE: u16 = 1;
pub(crate) const TABLE_FLAGS: u16 = 2;
pub(crate) const TABLE_USERDATA: u16 = 6;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
pub(crate) const CHAIN_POLICY: u16 = 5;
pub(crate) const CHAIN_TYPE: u16 = 7;
pub(crate) const CHAIN_USERDATA: u16 = 12;
pub(crate) const HOOK_NUMBER: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;
pub(crate) const HOOK_DEVICE: u16 = 3;
pub(crate) const HOOK_DEVICES: u16 = 4;
pub(crate) const DEVICE_NAME: u16 = 1;
pub(crate) const DEVICE_PREFIX: u16 = 2;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_POSITION: u16 = 6;
pub(crate) const RULE_USERDATA: u16 = 7;
pub(crate) const SET_NAME: u16 = 2;
pub(crate) const SET_FLAGS: u16 = 3;
pub(crate) const SET_DESCRIPTION: u16 = 9;
pub(crate) const DESCRIPTION_PARTS: u16 = 2;
pub(crate) const PART_LEN: u16 = 1;
pub(crate) const ELEMENTS: u16 = 3;
pub(crate) const ELEMENT_KEY: u16 = 1;
pub(crate) const ELEMENT_DATA: u16 = 2;
pub(crate) const ELEMENT_FLAGS: u16 = 3;
pub(crate) const ELEMENT_KEY_END: u16 = 10;
pub(crate) const OBJECT_COUNTER: u32 = 1;
pub(crate) const COUNTER_BYTES: u16 = 1;
pub(crate) const COUNTER_PACKETS: u16 = 2;
pub(crate) const GENERATION_ID: u16 = 1;
pub(crate) const GENERATION_PROCESS: u16 = 2;
pub(crate) const GENERATION_PROCESS_NAME: u16 = 3;

/// Attribute of every element of a list.
pub(crate) const LIST_ELEMENT: u16 = 1;
pub(crate) const EXPRESSION_NAME: u16 = 1;
pub(crate) const EXPRESSION_DATA: u16 = 2;
pub(crate) const DATA_VALUE: u16 = 1;
pub(crate) const DATA_VERDICT: u16 = 2;
pub(crate) const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;

pub(crate) const ACCEPT: u32 = 1;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
