#!/bin/sh
# Turns what flanneld says about this node's subnet into options for the Docker daemon.

set -eu

usage() {
  cat >&2 <<END
usage: $0 [-f FILE] [-d FILE] [-i] [-c] [-m] [-k KEY]

Writes options for the Docker daemon, so that its bridge is this node's flannel subnet.

  -f FILE  what flanneld has written (default $subnet_file)
  -d FILE  where to write to (default $options_file)
  -i       one variable for each option: DOCKER_OPT_BIP, DOCKER_OPT_MTU, DOCKER_OPT_IPMASQ
  -c       one variable for all options; without -i and -c both forms are written
  -m       leave out --ip-masq
  -k KEY   the name of the variable for all options (default $key)

Variables of the environment that begin with DOCKER_OPT_ are written along, and what KEY holds
already stays in front.
END
  exit 1
}

fail() {
  echo "$0: $*" >&2
  exit 1
}

subnet_file=/run/flannel/subnet.env
options_file=/run/docker_opts.env
key=DOCKER_OPTS
individual=
combined=
masquerade=yes

while getopts f:d:icmk:h option; do
  case $option in
    f) subnet_file=$OPTARG ;;
    d) options_file=$OPTARG ;;
    i) individual=yes ;;
    c) combined=yes ;;
    m) masquerade= ;;
    k) key=$OPTARG ;;
    *) usage ;;
  esac
done
[ -n "$individual$combined" ] || individual=yes combined=yes
case $key in
  '' | [0-9]* | *[!A-Za-z0-9_]*) fail "-k $key: not the name of a variable" ;;
esac

if [ -f "$subnet_file" ]; then
  # A name without a slash would be looked for in PATH.
  case $subnet_file in
    */*) ;;
    *) subnet_file=./$subnet_file ;;
  esac
  # shellcheck source=/dev/null
  . "$subnet_file"
fi

# --- the options ------------------------------------------------------------------------------

if [ -n "${FLANNEL_SUBNET-}" ]; then
  export DOCKER_OPT_BIP="--bip=$FLANNEL_SUBNET"
fi
if [ -n "${FLANNEL_MTU-}" ]; then
  export DOCKER_OPT_MTU="--mtu=$FLANNEL_MTU"
fi
# What flannel masquerades Docker must not, and the other way round.
if [ -n "${FLANNEL_IPMASQ-}" ] && [ -n "$masquerade" ]; then
  case $FLANNEL_IPMASQ in
    true) export DOCKER_OPT_IPMASQ=--ip-masq=false ;;
    false) export DOCKER_OPT_IPMASQ=--ip-masq=true ;;
    *) fail "FLANNEL_IPMASQ is '$FLANNEL_IPMASQ', neither true nor false" ;;
  esac
fi

eval "all=\${$key-}"
[ -z "$all" ] || all="$all "
: >"$options_file"
for name in $(env | sed -n 's/^\(DOCKER_OPT_[A-Za-z0-9_]*\)=.*/\1/p' | LC_ALL=C sort); do
  value=
  eval "value=\$$name"
  [ -z "$individual" ] || printf '%s="%s"\n' "$name" "$value" >>"$options_file"
  all="$all $value"
done
[ -z "$combined" ] || printf '%s="%s"\n' "$key" "$all" >>"$options_file"

# --- is the subnet free? ----------------------------------------------------------------------

# A bridge with this subnet would take the traffic of whoever it is routed to now.
if [ -n "${FLANNEL_SUBNET-}" ] && command -v ip >/dev/null; then
  case $(ip route show exact "$FLANNEL_SUBNET" 2>/dev/null) in
    *" via "*) fail "$FLANNEL_SUBNET is already routed to another node: see 'ip route'" ;;
  esac
fi
